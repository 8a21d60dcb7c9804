"""From changed weights to a version that the fleet serves: a snapshot, its broadcast, the announcement.

    train v ─▶ snapshot v ─▶ train v + 1 ────────────▶ snapshot v + 1 ─▶ …
                        └──▶ broadcast v ─▶ announce ──┘ waits for both

Without overlap training waits for the announcement. A snapshot is changed only while nobody reads it.
"""

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

import torch

from slipstream.config import RunConfig
from slipstream.learner.broadcast.publisher import Published, Publisher
from slipstream.learner.clients import ReplayClient
from slipstream.learner.lockstep import Lockstep

T = TypeVar("T")
NOTHING = Published(workers=0, seconds=0.0, pause_seconds=0.0, transfer_seconds=0.0)


class Publishing:
    """Brings versions to the fleet, one by one. Invariant: a version is announced once it is served."""

    def __init__(
        self,
        *,
        lockstep: Lockstep,
        publisher: Publisher,
        replay: ReplayClient,
        weights: asyncio.Lock,
        overlap: bool,
    ) -> None:
        self._lockstep = lockstep
        self._publisher = publisher
        self._replay = replay
        self._weights = weights
        self._overlap = overlap
        self._running: asyncio.Task[Published] | None = None
        self._last = NOTHING

    async def publish(self, version: int) -> Published:
        """Publish the weights as they are now, as `version`; returns once training may change them.

        What is returned is how it went; with overlap, how the version before went. Errors: RankLost,
        Unreachable.
        """
        await self.settle()
        await self._weights.acquire()  # until the broadcast is over: the snapshot and its number are one
        await self._lockstep.take_snapshot()  # a torn one stays locked: nobody may ever send it
        self._running = asyncio.create_task(self._bring(version))
        if not self._overlap:
            await self.settle()
        return self._last

    async def race_with_publication(self, other: Coroutine[Any, Any, T]) -> T:
        """Await something else; what a publication beside it raises ends that, too, and is raised here."""
        task = asyncio.create_task(other)
        while self._running is not None and not self._running.done() and not task.done():
            await asyncio.wait((task, self._running), return_when=asyncio.FIRST_COMPLETED)
        if self._running is not None and self._running.done() and self._running.exception() is not None:
            task.cancel()
            await self.settle()
        return await task

    async def settle(self) -> None:
        """Wait until the last version is announced. Errors: Unreachable."""
        running, self._running = self._running, None
        if running is not None:
            self._last = await running

    async def _bring(self, version: int) -> Published:
        try:
            published = await self._publisher.publish(version)
        finally:
            self._weights.release()
        await self._replay.announce(version)
        return published


def overlaps(config: RunConfig, device: torch.device) -> bool:
    """Whether to publish while training goes on: as configured, or where there is something to spare for it.

    That is a GPU, whose processor is idle meanwhile, or a core for each thread of the run and one more.
    """
    if config.weights.overlap is not None:
        return config.weights.overlap
    threads = config.learner.threads * config.learner.ranks + config.rollout.threads * config.rollout.workers
    if config.algorithm.resolved_distillation() is not None:
        threads += config.teacher.threads
    return device.type == "cuda" or (os.cpu_count() or 1) > threads
