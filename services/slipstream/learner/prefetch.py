"""The next batch, fetched, and with a teacher read by it, while the current one is being trained on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from slipstream.learner.clients import ReplayClient
from slipstream.records import Group
from slipstream.rpc.errors import SlipstreamError

Teach = Callable[[Sequence[Group]], Awaitable[list[Group]]]


class Prefetch:
    """At most one batch ahead. What is fetched is taken, or put back by `drop`."""

    def __init__(self, replay: ReplayClient, *, steps: int, teach: Teach | None = None) -> None:
        """`teach` adds to a batch what a teacher says of it."""
        self._replay = replay
        self._steps = steps
        self._teach = teach
        self._task: asyncio.Task[list[Group]] | None = None
        self._sampled = asyncio.Event()
        self._untaught: list[Group] = []

    async def sampled(self, version: int, stop: asyncio.Event, *, patience_seconds: float) -> None:
        """Wait until replay has given the batch for the step after `version`, or its fetch has failed, or
        `stop` is set. Errors: TimeoutError when there is none within `patience_seconds`."""
        task = self._begin(version)
        if not await _first(task, self._sampled, stop, seconds=patience_seconds):
            raise TimeoutError

    async def take(self, version: int, stop: asyncio.Event, *, patience_seconds: float) -> list[Group] | None:
        """The batch for the step after `version`, with the one after it on its way; None once `stop` is set.

        Errors: TimeoutError when there is none within `patience_seconds`, the teacher's time aside;
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

    async def drop(self) -> Exception | None:
        """Put a batch that will not be trained on back into the buffer; returns what its fetch raised, if it
        failed. Errors: Unreachable."""
        if self._task is None:
            return None
        self._task.cancel()
        (outcome,) = await asyncio.gather(self._task, return_exceptions=True)
        groups = outcome if isinstance(outcome, list) else self._untaught
        if groups:
            await self._replay.release(groups)
        return outcome if isinstance(outcome, Exception) else None

    def _begin(self, version: int) -> "asyncio.Task[list[Group]]":
        """The fetch that is under way, or a new one."""
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
    """Wait until the task has ended or an event is set; False when `seconds` are over before."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait((task, *waiting), return_when=asyncio.FIRST_COMPLETED, timeout=seconds)
    finally:
        for other in waiting:
            other.cancel()
    return bool(done)
