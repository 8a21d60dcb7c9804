"""AdmissionQueue for answers: how many may be in work or wait, and what those beyond are told."""

import asyncio
from typing import Any

from slipstream.rpc.errors import Busy
from slipstream.telemetry.metrics import Metrics

SMOOTHING = 0.1
"""Weight of the newest group in the mean time of a group."""
RETRY_SECONDS = (0.05, 5.0)
"""Bounds of the hint."""


class AdmissionQueue:
    """The queue of a verifier.

    Invariant: a group comes in when with it at most `places` are taken, or alone. An answer has one place
    until its caller has the verdicts or gives up; each verdict that then goes on, so that the next try finds
    it, has one until it is there.
    """

    def __init__(self, places: int, *, metrics: Metrics) -> None:
        self._places = places
        self._metrics = metrics
        self._taken = 0
        self._mean_seconds = 0.0
        self._left_behind: set[asyncio.Task[Any]] = set()
        metrics.count("answers_refused_total", 0)

    def admit(self, answers: int) -> None:
        """Take places for a group. Errors: Busy when there are not as many."""
        if self._taken and self._taken + answers > self._places:
            self._metrics.count("answers_refused_total", answers)
            least, most = RETRY_SECONDS
            raise Busy(
                f"{self._taken} answers are in work or wait, and verifier.queue is {self._places}",
                retry_after_seconds=min(max(self._mean_seconds, least), most),
            )
        self._take(answers)

    def release(self, answers: int, *, seconds: float) -> None:
        """Give the places of a group back, which it had for so long."""
        self._take(-answers)
        self._metrics.observe("score_seconds", seconds)
        self._mean_seconds += SMOOTHING * (seconds - self._mean_seconds)

    def hold_until_done(self, verdict: asyncio.Task[Any]) -> None:
        """One place until a verdict is there that nobody waits for any more."""
        if verdict.done() or verdict in self._left_behind:
            return
        self._take(1)
        self._left_behind.add(verdict)
        verdict.add_done_callback(self._found)

    def _found(self, verdict: asyncio.Task[Any]) -> None:
        self._left_behind.remove(verdict)
        self._take(-1)

    def _take(self, answers: int) -> None:
        self._taken += answers
        self._metrics.set("answers_waiting", self._taken)
