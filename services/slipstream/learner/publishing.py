"""Publication of a version: a snapshot of the weights, its broadcast, the announcement.

    train v ─┬─▶ train v + 1: gradients ─▶ update ──────┬─▶ …
             └─▶ snapshot v ─▶ broadcast v ─▶ announce ─┘ waits for both

Without overlap, training waits for the announcement. With overlap each rank copies its weights beside the
gradients of the next step, whose update waits for the copy. A snapshot changes only while nothing reads it.
"""

import asyncio
import os
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import torch

from slipstream.config import RunConfig
from slipstream.learner.broadcast.publisher import Published, Publisher
from slipstream.learner.clients import ReplayClient
from slipstream.learner.lockstep import Lockstep
from slipstream.samples.timeline.writer import NO_TIMELINE, Timeline
from slipstream.telemetry.background import BackgroundTask, first_end
from slipstream.telemetry.logs import Log

T = TypeVar("T")
NOTHING = Published(rollouts=0, seconds=0.0, pause_seconds=0.0, transfer_seconds=0.0)


class Publishing:
    """Publishes versions one by one. Invariant: a version is announced only after the fleet serves it."""

    def __init__(
        self,
        *,
        lockstep: Lockstep,
        publisher: Publisher,
        replay: ReplayClient,
        weights: asyncio.Lock,
        overlap: bool,
        timeline: Timeline = NO_TIMELINE,
        log: Log,
    ) -> None:
        self._lockstep = lockstep
        self._publisher = publisher
        self._replay = replay
        self._weights = weights
        self._overlap = overlap
        self._timeline = timeline
        self._log = log
        self._running: BackgroundTask[Published] | None = None
        self._last = NOTHING

    async def publish(self, version: int) -> Published:
        """Publish the current weights as `version`; return once training may go on.

        The result is that of this publication; with overlap, that of the one before. Errors: RankLost,
        Unreachable.
        """
        await self.settle()
        began_to_copy = asyncio.Event()
        self._running = running = BackgroundTask.begin(
            self._bring_shown(version, began_to_copy), "publication", self._log, version=version
        )
        try:
            await self.race_with_publication(began_to_copy.wait())
        except asyncio.CancelledError:
            running.cancel()
            raise
        if not self._overlap:
            await self.settle()
        return self._last

    async def race_with_publication(self, other: Coroutine[Any, Any, T]) -> T:
        """Return the result of another coroutine. Errors: a failure of the publication, which cancels it."""
        task = BackgroundTask.begin_unlogged(other, "work beside the publication", self._log)
        try:
            if self._running is not None:
                await first_end(task, self._running)
                if self._running.failed:
                    await self.settle()
            return await task.settle()
        finally:
            await task.drop()

    async def settle(self) -> None:
        """Wait until the last version is announced. Errors: Unreachable."""
        running, self._running = self._running, None
        if running is not None:
            self._last = await running.settle()

    async def _bring_shown(self, version: int, began_to_copy: asyncio.Event) -> Published:
        """Add the whole publication to the timeline, also the part that is beside training."""
        with self._timeline.during("publish", step=version):
            return await self._bring(version, began_to_copy)

    async def _bring(self, version: int, began_to_copy: asyncio.Event) -> Published:
        """Copy the weights, broadcast the copy, announce it. Errors: RankLost, Unreachable.

        began_to_copy: set once training may go on; a step changes the weights after they are copied.
        """
        began = time.monotonic()
        async with self._weights:  # held until the end of the broadcast, which reads the snapshot
            try:
                await self._lockstep.begin_snapshot(probe=self._publisher.wants_probe(version))
                began_to_copy.set()
                await self._lockstep.settle_snapshot()
            except BaseException:
                self._publisher.refuse(f"the snapshot of version {version} is incomplete")
                raise
            published = await self._publisher.publish(version)
        await self._replay.announce(version)
        return replace(published, seconds=time.monotonic() - began)


def overlaps(config: RunConfig, device: torch.device) -> bool:
    """Return whether versions are published while training continues.

    Without weights.overlap that is so on a GPU, because the processor is idle meanwhile, and on a machine
    with more cores than the run has threads.
    """
    if config.weights.overlap is not None:
        return config.weights.overlap
    threads = config.learner.threads * config.learner.ranks + config.rollout.threads * config.rollout.workers
    if config.algorithm.resolved_distillation() is not None:
        threads += config.teacher.threads
    return device.type == "cuda" or (os.cpu_count() or 1) > threads
