"""The rollouts that this actor samples from, with a stream to each, and how many groups may enter them.

    directory ─▶ update: one stream for each listed rollout
    place(group) ─▶ a rollout with a free place; all members of the group sample there while it lives

place.py has the class of a place. A lost rollout is tried again once RETRY_SECONDS have passed, if replay
still lists it.

A rollout that the learner does not reach goes on with its version. It gets no further groups once they are
expected to be older than `max_staleness` at their step: lag + pipeline_depth > max_staleness. Once its lag
alone is above `max_staleness`, no further token of it would train, and its requests continue on other
rollouts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from math import inf

import grpc

from slipstream.actor.place import Place, Rollout
from slipstream.actor.rollout_stream import LOSS_CAUSES, LossCause, RolloutStream
from slipstream.config.sections.run import StalenessConfig
from slipstream.records import NO_VERSION, ListedRollout, RolloutStatus
from slipstream.served_version import ServedVersion
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

RETRY_SECONDS = 1.0
REMEMBERED_PROMPTS = 4096
"""Prompts whose rollout is remembered: more than the groups that one actor samples and scores at a time."""


class Rollouts:
    """Places and streams. `served` follows the newest version that any rollout serves.

    Invariant: a group has at most one place, and the requests of a group go to the rollout of that place.
    """

    def __init__(
        self,
        *,
        connect: Callable[[str], grpc.aio.Channel],
        silence_seconds: float,
        most_engines: int,
        staleness: StalenessConfig,
        served: ServedVersion,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._connect = connect
        self._silence_seconds = silence_seconds
        self._most_engines = most_engines
        self._most_lag = staleness.max_staleness
        self._most_lag_for_groups = max(0, staleness.max_staleness - staleness.pipeline_depth)
        self._served = served
        self._metrics = metrics
        self._log = log
        self._rollouts: dict[str, Rollout] = {}
        self._retry_at: dict[str, float] = {}
        self._last_rollouts: dict[str, str] = {}
        """Prompt → name of the rollout at which its last group has, or had, its place; the oldest first."""
        self._unreached: set[str] = set()
        """Rollouts whose silence has been logged; they are tried again without a further line."""
        self._closing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._notifying: BackgroundTask[None] | None = None
        self._continuing: list[int] = []
        """The least version of each lost request that waits for a place."""
        self.suspects = asyncio.Lock()
        """See RolloutChoice."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when places became free or rollouts came or went."""
        for reason in ("drained", "lost", "outdated"):
            metrics.count("rollouts_lost_total", 0, reason=reason)
        for cause in LOSS_CAUSES:
            metrics.count("requests_moved_total", 0, reason=cause)

    @property
    def capacity(self) -> int:
        """Groups that this actor may hold places for: its own, and the free ones."""
        return sum(
            len(rollout.groups) + (rollout.free if self._young(rollout) else 0)
            for rollout in self._rollouts.values()
        )

    def update(self, listed: Sequence[ListedRollout]) -> None:
        """Open streams to rollouts that are new.

        A rollout that is not listed any more stays as long as its stream lives: replay may have missed its
        heartbeats.
        """
        for each in listed:
            if each.worker_id not in self._rollouts and time.monotonic() >= self._retry_at.get(
                each.worker_id, 0
            ):
                self._open(each)

    @asynccontextmanager
    async def place(
        self,
        group_id: str,
        *,
        prompt_id: str = "",
        min_version: int = NO_VERSION,
        engines_lost: int = 0,
        on_tokens: Callable[[str], None] = lambda _: None,
    ) -> AsyncIterator[Place]:
        """Wait for a free place at a rollout that serves `min_version` or a later version, and hold it.

        `engines_lost`: engines that the prompt ended under earlier leases. `on_tokens`: see Place.
        """
        place = Place(
            self,
            group_id,
            prompt_id=prompt_id,
            min_version=min_version,
            engines_lost=engines_lost,
            on_tokens=on_tokens,
        )
        await place.enter()
        try:
            yield place
        finally:
            place.leave()

    def beside(self, prompt_id: str) -> Place:
        """See Samplers."""
        return Place(self, "", prompt_id=prompt_id)

    async def close(self) -> None:
        """Close all streams."""
        for rollout in list(self._rollouts.values()):
            self._forget(rollout)
        await asyncio.gather(*self._closing)

    async def acquire(self, group_id: str, *, prompt_id: str, min_version: int, continuing: bool) -> Rollout:
        """See RolloutChoice."""
        if continuing:
            self._continuing.append(min_version)
        try:
            async with self._changed:
                while True:
                    rollout = self._choose(
                        group_id, prompt_id, min_version=min_version, continuing=continuing
                    )
                    if rollout is not None:
                        if group_id:
                            rollout.groups.add(group_id)
                            self._remember(prompt_id, rollout)
                        return rollout
                    await self._changed.wait()
        finally:
            if continuing:
                self._continuing.remove(min_version)
            self._notify()

    def over_age(self, rollout: Rollout) -> bool:
        """See RolloutChoice."""
        return rollout.lag > self._most_lag

    def release(self, rollout: Rollout, group_id: str) -> None:
        """See RolloutChoice."""
        rollout.groups.discard(group_id)
        self._notify()

    def moved(self, cause: LossCause) -> None:
        """See RolloutChoice."""
        self._metrics.count("requests_moved_total", reason=cause)

    def refused(self, rollout: Rollout, group_id: str, *, seconds: float) -> None:
        """See RolloutChoice."""
        rollout.full_until = time.monotonic() + seconds
        rollout.groups.discard(group_id)
        asyncio.get_running_loop().call_later(seconds, self._notify)

    @property
    def most_engines(self) -> int:
        """See RolloutChoice."""
        return self._most_engines

    def _choose(self, group_id: str, prompt_id: str, *, min_version: int, continuing: bool) -> Rollout | None:
        """Return the rollout for a request. A new group leaves a place that a lost request waits for."""
        if not group_id:
            return self._beside(prompt_id) or self._best("", min_version, inf)
        awaited = inf if continuing else min(self._continuing, default=inf)
        return self._best(group_id, min_version, awaited)

    def _best(self, group_id: str, min_version: int, awaited: float) -> Rollout | None:
        """Return the usable rollout with most free places that serves a version in [min_version, awaited)."""
        usable = [
            rollout
            for rollout in self._rollouts.values()
            if rollout.usable
            and min_version <= rollout.status.serving_version < awaited
            and (not group_id or (rollout.free and self._young(rollout)))
        ]
        return max(usable, key=lambda rollout: (rollout.free, rollout.name), default=None)

    def _beside(self, prompt_id: str) -> Rollout | None:
        """Return the rollout of the last group of a prompt, if requests can be sent there."""
        rollout = self._rollouts.get(self._last_rollouts.get(prompt_id, ""))
        return rollout if rollout is not None and rollout.usable else None

    def _remember(self, prompt_id: str, rollout: Rollout) -> None:
        self._last_rollouts.pop(prompt_id, None)
        self._last_rollouts[prompt_id] = rollout.name
        if len(self._last_rollouts) > REMEMBERED_PROMPTS:
            del self._last_rollouts[next(iter(self._last_rollouts))]

    def _young(self, rollout: Rollout) -> bool:
        """Return whether a group that begins here is expected to be young enough at its step."""
        return rollout.lag <= self._most_lag_for_groups

    def _open(self, listed: ListedRollout) -> None:
        channel = self._connect(listed.address)
        rollout = Rollout(listed=listed, channel=channel, status=RolloutStatus())
        self._rollouts[listed.worker_id] = rollout
        rollout.stream = RolloutStream(
            channel,
            silence_seconds=self._silence_seconds,
            on_status=lambda status: self._heard(rollout, status),
            on_lost=lambda reason: self._lost(rollout, reason),
            log=self._log,
        )

    def _heard(self, rollout: Rollout, status: RolloutStatus) -> None:
        before, rollout.status, rollout.heard = rollout.status, status, True
        if before.serving_version != status.serving_version:
            self._follow_resume(rollout, before.serving_version)
        if before != status:
            self._follow_version()
            self._notify()

    def _lost(self, rollout: Rollout, reason: str) -> None:
        if self._rollouts.get(rollout.name) is rollout:
            drained = rollout.status.draining
            if rollout.heard:
                self._metrics.count("rollouts_lost_total", reason="drained" if drained else "lost")
                self._log.warning(
                    "lost a rollout", rollout=rollout.name, groups=len(rollout.groups), reason=reason
                )
                self._unreached.discard(rollout.name)
            elif rollout.name not in self._unreached:
                self._unreached.add(rollout.name)
                self._log.warning(
                    "a listed rollout does not answer",
                    rollout=rollout.name,
                    address=rollout.listed.address,
                    reason=reason,
                )
            self._retry_at[rollout.name] = time.monotonic() + RETRY_SECONDS
            self._forget(rollout)

    def _forget(self, rollout: Rollout) -> None:
        self._rollouts.pop(rollout.name, None)
        closing = asyncio.create_task(_close(rollout))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._follow_version()
        self._notify()

    def _follow_resume(self, rollout: Rollout, before: int) -> None:
        """Find the rollouts that serve lost versions, when one goes back to an older version than before.

        The learner has resumed from an older checkpoint then. The first rollout that goes back shows it.
        """
        version = rollout.status.serving_version
        if version < before and not rollout.lost_version:
            for each in self._rollouts.values():
                each.lost_version = each.status.serving_version > version
        rollout.lost_version = False

    def _follow_version(self) -> None:
        """Let `served` follow the newest version that a rollout serves, lost versions aside."""
        usable = [each for each in self._rollouts.values() if each.usable]
        if not usable:
            self._served.suspend()
            return
        newest = max(each.status.serving_version for each in _up_to_date(usable) or usable)
        self._served.serve(newest)
        for rollout in self._rollouts.values():
            self._follow_lag(rollout, newest=newest)

    def _follow_lag(self, rollout: Rollout, *, newest: int) -> None:
        """Take the requests of a rollout elsewhere once its tokens are over age."""
        before = rollout.lag
        rollout.lag = max(0, newest - rollout.status.serving_version) if rollout.usable else 0
        if self.over_age(rollout) and before <= self._most_lag:
            reason = f"it serves version {rollout.status.serving_version}, and others serve {newest}"
            self._metrics.count("rollouts_lost_total", reason="outdated")
            self._log.warning(
                "a rollout is over age", rollout=rollout.name, groups=len(rollout.groups), reason=reason
            )
            rollout.open_stream.withdraw(f"{reason} (staleness.max_staleness)")

    def _notify(self) -> None:
        """Wake up everything that waits for a place."""
        self.on_change()
        if self._notifying is None or self._notifying.done:
            self._notifying = BackgroundTask.begin(self._wake(), "waking of groups", self._log)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _up_to_date(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [rollout for rollout in rollouts if not rollout.lost_version]


async def _close(rollout: Rollout) -> None:
    if rollout.stream is not None:
        await rollout.stream.close()
    await rollout.channel.close(None)
