"""Prefetching: the next batch is sampled, and gets a teacher's logprobs, while the current one trains."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from slipstream.learner.clients import ReplayClient
from slipstream.records import Group
from slipstream.rpc.errors import SlipstreamError
from slipstream.telemetry import background, logs

Teach = Callable[[Sequence[Group]], Awaitable[list[Group]]]


class Prefetch:
    """Holds at most one batch ahead, which is taken, or released by `release`."""

    def __init__(
        self, replay: ReplayClient, *, steps: int, log: logs.Log, teach: Teach | None = None
    ) -> None:
        """`teach` adds a teacher's logprobs to a batch."""
        self._replay = replay
        self._steps = steps
        self._teach = teach
        self._log = log
        self._task: background.BackgroundTask[list[Group]] | None = None
        self._sampled = asyncio.Event()
        self._held: list[Group] = []

    async def sampled(self, version: int, stop: asyncio.Event, *, patience_seconds: float) -> None:
        """Wait until the batch for the step after `version` is sampled, its fetch fails, or `stop` is set.

        Errors: TimeoutError after `patience_seconds`.
        """
        task = self._begin(version)
        if not await task.wait(self._sampled, stop, seconds=patience_seconds):
            raise TimeoutError

    async def take(self, version: int, stop: asyncio.Event, *, patience_seconds: float) -> list[Group] | None:
        """Return the batch for the step after `version`, and begin to fetch the next; None if `stop` is set.

        Errors: TimeoutError if replay has none within `patience_seconds`, not counting the teacher's time;
        Unreachable, and those of `teach`.
        """
        await self.sampled(version, stop, patience_seconds=patience_seconds)
        task = self._begin(version)
        await task.wait(stop)
        if stop.is_set():
            return None
        self._task = None
        if version + 1 < self._steps:
            self._begin(version + 1)
        return await task.settle()

    async def release(self) -> BaseException | None:
        """Release a batch that will not be trained on. Return the exception of its fetch, if that failed.

        Errors: Unreachable.
        """
        if self._task is None:
            return None
        failure = await self._task.end()
        if self._held:
            await self._replay.release(self._held)
        return failure

    def _begin(self, version: int) -> background.BackgroundTask[list[Group]]:
        """Return the running fetch, or start one."""
        if self._task is None:
            self._sampled, self._held = asyncio.Event(), []
            self._task = background.BackgroundTask.begin_unlogged(
                self._fetch(version), "fetch of a batch", self._log
            )
        return self._task

    async def _fetch(self, version: int) -> list[Group]:
        while not (groups := await self._replay.sample(version)):
            pass
        self._sampled.set()
        self._held = groups
        if self._teach is None:
            return groups
        try:
            self._held = await self._teach(groups)
        except SlipstreamError:
            self._held = []
            await self._replay.release(groups)
            raise
        return self._held
