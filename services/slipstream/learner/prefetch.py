"""Prefetching: the next batch is sampled, and gets a teacher's logprobs, while the current one trains."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from slipstream.learner.clients import ReplayClient
from slipstream.records import Group
from slipstream.rpc.errors import SlipstreamError

Teach = Callable[[Sequence[Group]], Awaitable[list[Group]]]


class Prefetch:
    """Holds at most one batch ahead, which is taken, or released by `release`."""

    def __init__(self, replay: ReplayClient, *, steps: int, teach: Teach | None = None) -> None:
        """`teach` adds a teacher's logprobs to a batch."""
        self._replay = replay
        self._steps = steps
        self._teach = teach
        self._task: asyncio.Task[list[Group]] | None = None
        self._sampled = asyncio.Event()
        self._untaught: list[Group] = []

    async def sampled(self, version: int, stop: asyncio.Event, *, patience_seconds: float) -> None:
        """Wait until the batch for the step after `version` is sampled, its fetch fails, or `stop` is set.

        Errors: TimeoutError after `patience_seconds`.
        """
        task = self._begin(version)
        if not await _first(task, self._sampled, stop, seconds=patience_seconds):
            raise TimeoutError

    async def take(self, version: int, stop: asyncio.Event, *, patience_seconds: float) -> list[Group] | None:
        """Return the batch for the step after `version`, and begin to fetch the next; None if `stop` is set.

        Errors: TimeoutError if replay has none within `patience_seconds`, not counting the teacher's time;
        Unreachable, and those of `teach`.
        """
        await self.sampled(version, stop, patience_seconds=patience_seconds)
        task = self._begin(version)
        await _first(task, stop)
        if stop.is_set():
            return None
        self._task = None
        if version + 1 < self._steps:
            self._begin(version + 1)
        return task.result()

    async def release(self) -> Exception | None:
        """Release a batch that will not be trained on. Return the exception of its fetch, if that failed.

        Errors: Unreachable.
        """
        if self._task is None:
            return None
        self._task.cancel()
        (outcome,) = await asyncio.gather(self._task, return_exceptions=True)
        groups = outcome if isinstance(outcome, list) else self._untaught
        if groups:
            await self._replay.release(groups)
        return outcome if isinstance(outcome, Exception) else None

    def _begin(self, version: int) -> "asyncio.Task[list[Group]]":
        """Return the running fetch, or start one."""
        if self._task is None:
            self._sampled, self._untaught = asyncio.Event(), []
            self._task = asyncio.create_task(self._fetch(version))
        return self._task

    async def _fetch(self, version: int) -> list[Group]:
        while not (groups := await self._replay.sample(version)):
            pass
        self._sampled.set()
        if self._teach is None:
            return groups
        self._untaught = groups
        try:
            taught = await self._teach(groups)
        except SlipstreamError:
            self._untaught = []
            await self._replay.release(groups)
            raise
        self._untaught = []
        return taught


async def _first(
    task: "asyncio.Task[list[Group]]", *events: asyncio.Event, seconds: float | None = None
) -> bool:
    """Wait until the task ends or an event is set; return False after `seconds`."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait((task, *waiting), return_when=asyncio.FIRST_COMPLETED, timeout=seconds)
    finally:
        for other in waiting:
            other.cancel()
    return bool(done)
