"""The rollouts that a publication leaves out because they are late.

A clock starts when the first rollout answers, or at once if other rollouts serve the version already. After
`weights.patience_seconds` the rollouts without an answer are left out: they go on with their old version, and
the next publication includes them again. If all of them answer no ping either, this happens after half of
that time. A rollout that missed `weights.max_lag` versions in a row is waited for until the deadline, which
drops it.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slipstream.config import WeightsConfig
from slipstream.learner.broadcast.fleet import Fleet, Member
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

POLL_SECONDS = 0.05
SILENT_SHARE = 0.5
"""A rollout is silent if it answers no ping for this share of the patience."""

Answers = Mapping[Member, asyncio.Task[Any]]


class Latecomers:
    """The rollouts that are left out of the publication of `version`."""

    def __init__(self, config: WeightsConfig, fleet: Fleet, *, metrics: Metrics, log: Log) -> None:
        self._patience = config.patience_seconds
        self._max_lag = config.max_lag
        self._fleet = fleet
        self._metrics = metrics
        self._log = log
        self._left_out: set[Member] = set()
        metrics.count("rollouts_left_out_total", 0)

    def begin(self) -> None:
        """Begin a publication, which includes all members again."""
        self._left_out.clear()
        for member in self._fleet.members():
            member.liveness.begin()

    def expected(self, version: int) -> list[Member]:
        """Return the members that do not serve the version yet, and are not left out."""
        members = self._fleet.members()
        return [each for each in members if each.version != version and each not in self._left_out]

    async def leave_out(
        self,
        answers: Answers,
        version: int,
        kind: str,
        *,
        answered: Callable[[Member], bool] = lambda member: False,
        timeout_seconds: float = math.inf,
    ) -> Sequence[Member]:
        """Wait for the answers of a kind, and return the members that are left out from now on.

        Their tasks are cancelled. If none is left out, answers may be missing: those of members that may not
        be left out, and all of them after `timeout_seconds`. `answered`: whether a member without an answer
        is known to be on its way to one.
        """
        deadline = time.monotonic() + timeout_seconds
        first = time.monotonic() if any(m.version == version for m in self._fleet.members()) else None
        while late := [m for m, task in answers.items() if not (task.done() or answered(m))]:
            now = time.monotonic()
            if first is None and len(late) < len(answers):
                first = now
            if first is not None and (now > first + self._patience or self._all_silent(late)):
                break
            if now > deadline:
                return ()
            tasks = [answers[member] for member in late]
            await asyncio.wait(tasks, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        late = [member for member in late if self._may_miss(member, version)]
        for member in late:
            answers[member].cancel()
            self._note(member, version, kind)
        return late

    def silent(self, members: Iterable[Member], version: int) -> list[Member]:
        """Return the members that answer no ping, and may miss the version. Asks them; see Liveness."""
        missable = [member for member in members if self._may_miss(member, version)]
        return [member for member in missable if self._is_silent(member)]

    def _all_silent(self, members: Sequence[Member]) -> bool:
        return all([self._is_silent(member) for member in members])  # a list, so that all of them are asked

    def _is_silent(self, member: Member) -> bool:
        return member.liveness.silent(SILENT_SHARE * self._patience)

    def _may_miss(self, member: Member, version: int) -> bool:
        behind = 0 if member.missed_since is None else version - member.missed_since
        return behind < self._max_lag

    def _note(self, member: Member, version: int, kind: str) -> None:
        """Note that the member misses the version."""
        self._left_out.add(member)
        if member.missed_since is None:
            member.missed_since = version
        self._metrics.count("rollouts_left_out_total")
        self._log.warning(
            "rollout left out of an update",
            rollout=member.worker_id,
            version=version,
            missing=kind,
            silent=member.liveness.fell_silent,
            patience_seconds=self._patience,
        )
