"""The admission queue of a verifier: a bound on the answers that are scored or wait, and on programs."""

import asyncio
from typing import Any

from slipstream.rpc.errors import Busy
from slipstream.telemetry.metrics import Metrics

SMOOTHING = 0.1
"""Weight of the newest group in the mean time of a group."""
RETRY_SECONDS = (0.05, 5.0)
"""Bounds of the retry-after hint."""


class AdmissionQueue:
    """A bounded number of slots, one for each answer and for each program of the tool `python`.

    Invariant: a group is admitted if at most `slots` are taken together with it, or if no slot is taken. An
    answer has a slot until its caller has the verdicts or gives up. A verdict that is computed further after
    its caller gave up, so that the next try finds it in the cache, has a slot until it is there.
    """

    def __init__(self, slots: int, *, metrics: Metrics) -> None:
        self._slots = slots
        self._metrics = metrics
        self._taken = 0
        self._mean_seconds = 0.0
        self._abandoned: set[asyncio.Task[Any]] = set()
        metrics.count("answers_refused_total", 0)

    def admit(self, answers: int) -> None:
        """Take the slots of a group. Errors: Busy, with a retry-after hint, if there are too few."""
        if self._taken and self._taken + answers > self._slots:
            self._metrics.count("answers_refused_total", answers)
            least, most = RETRY_SECONDS
            raise Busy(
                f"{self._taken} answers are in work or wait, and verifier.queue is {self._slots}",
                retry_after_seconds=min(max(self._mean_seconds, least), most),
            )
        self._take(answers)

    def release(self, answers: int, *, seconds: float) -> None:
        """Free the slots of a group, which it held for `seconds`."""
        self._take(-answers)
        self._mean_seconds += SMOOTHING * (seconds - self._mean_seconds)

    def hold_until_done(self, verdict: asyncio.Task[Any]) -> None:
        """Take one slot until a verdict is done whose caller gave up."""
        if verdict.done() or verdict in self._abandoned:
            return
        self._take(1)
        self._abandoned.add(verdict)
        verdict.add_done_callback(self._abandoned_is_done)

    def _abandoned_is_done(self, verdict: asyncio.Task[Any]) -> None:
        self._abandoned.remove(verdict)
        self._take(-1)

    def _take(self, answers: int) -> None:
        self._taken += answers
        self._metrics.set("answers_waiting", self._taken)
