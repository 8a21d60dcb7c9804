"""The rollouts that this actor samples from, with a stream to each, and how many groups may enter them.

    directory ─▶ update: one stream for each listed rollout
    place(group) ─▶ a rollout with a free place; all members of the group sample there while it lives

What a place does is in place.py. A lost rollout is tried again once RETRY_SECONDS have passed,
if replay still lists it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc

from slipstream.actor.place import Place, Rollout
from slipstream.actor.rollout_stream import RolloutStream
from slipstream.records import NO_VERSION, ListedRollout, RolloutStatus
from slipstream.served_version import ServedVersion
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

RETRY_SECONDS = 1.0


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
        served: ServedVersion,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._connect = connect
        self._silence_seconds = silence_seconds
        self._most_engines = most_engines
        self._served = served
        self._metrics = metrics
        self._log = log
        self._rollouts: dict[str, Rollout] = {}
        self._retry_at: dict[str, float] = {}
        self._unreached: set[str] = set()
        """Rollouts whose silence has been logged; they are tried again without a further line."""
        self._closing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._notifying: BackgroundTask[None] | None = None
        self._continuing = 0
        self.suspects = asyncio.Lock()
        """See RolloutChoice."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when places became free or rollouts came or went."""
        for reason in ("drained", "lost"):
            metrics.count("rollouts_lost_total", 0, reason=reason)

    @property
    def capacity(self) -> int:
        """Groups that this actor may hold places for: its own, and the free ones."""
        return sum(len(rollout.groups) + rollout.free for rollout in self._rollouts.values())

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
    async def place(self, group_id: str, *, min_version: int = NO_VERSION) -> AsyncIterator[Place]:
        """Wait for a free place at a rollout that serves `min_version` or a later version, and hold it."""
        place = Place(self, group_id, min_version=min_version)
        await place.enter()
        try:
            yield place
        finally:
            place.leave()

    def anywhere(self) -> Place:
        """Return a sampler that needs no place, for requests beside the sampling of groups."""
        return Place(self, "", min_version=NO_VERSION)

    async def close(self) -> None:
        """Close all streams."""
        for rollout in list(self._rollouts.values()):
            self._forget(rollout)
        await asyncio.gather(*self._closing)

    async def acquire(self, group_id: str, *, min_version: int, continuing: bool) -> Rollout:
        """See RolloutChoice."""
        self._continuing += continuing
        try:
            async with self._changed:
                while True:
                    rollout = self._best(group_id, min_version=min_version)
                    if rollout is not None and (continuing or not self._continuing or not group_id):
                        if group_id:
                            rollout.groups.add(group_id)
                        return rollout
                    await self._changed.wait()
        finally:
            self._continuing -= continuing
            self._notify()

    def release(self, rollout: Rollout, group_id: str) -> None:
        """See RolloutChoice."""
        rollout.groups.discard(group_id)
        self._notify()

    def refused(self, rollout: Rollout, group_id: str, *, seconds: float) -> None:
        """See RolloutChoice."""
        rollout.full_until = time.monotonic() + seconds
        rollout.groups.discard(group_id)
        asyncio.get_running_loop().call_later(seconds, self._notify)

    @property
    def most_engines(self) -> int:
        """See RolloutChoice."""
        return self._most_engines

    def _best(self, group_id: str, *, min_version: int) -> Rollout | None:
        usable = [
            rollout
            for rollout in self._rollouts.values()
            if rollout.usable
            and rollout.status.serving_version >= min_version
            and (rollout.free or not group_id)
        ]
        return max(usable, key=lambda rollout: (rollout.free, rollout.name), default=None)

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

    def _follow_version(self) -> None:
        """Let `served` follow the newest version that a rollout serves."""
        versions = [each.status.serving_version for each in self._rollouts.values() if each.usable]
        if versions:
            self._served.serve(max(versions))
        else:
            self._served.suspend()

    def _notify(self) -> None:
        """Wake up everything that waits for a place."""
        self.on_change()
        if self._notifying is None or self._notifying.done:
            self._notifying = BackgroundTask.begin(self._wake(), "waking of groups", self._log)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _close(rollout: Rollout) -> None:
    if rollout.stream is not None:
        await rollout.stream.close()
    await rollout.channel.close(None)
