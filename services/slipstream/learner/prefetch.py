"""The next batch, fetched while the current one is being trained on."""

import asyncio

from slipstream.learner.clients import ReplayClient
from slipstream.types import Group


class Prefetch:
    """At most one batch ahead. What is fetched is taken, or put back by `drop`."""

    def __init__(self, replay: ReplayClient, *, steps: int) -> None:
        self._replay = replay
        self._steps = steps
        self._task: asyncio.Task[list[Group]] | None = None

    async def take(self, version: int, stop: asyncio.Event, *, patience_seconds: float) -> list[Group] | None:
        """The batch for the step after `version`, with the one after it on its way; None once `stop` is set.

        Errors: TimeoutError when there is none within `patience_seconds`; Unreachable.
        """
        task = self._task = self._task or asyncio.create_task(self._fetch(version))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait(
                (task, stopping), return_when=asyncio.FIRST_COMPLETED, timeout=patience_seconds
            )
        finally:
            stopping.cancel()
        if stop.is_set():
            return None
        if not task.done():
            raise TimeoutError
        more = version + 1 < self._steps
        self._task = asyncio.create_task(self._fetch(version + 1)) if more else None
        return task.result()

    async def drop(self) -> Exception | None:
        """Put a batch that will not be trained on back into the buffer; returns what its fetch raised, if it
        failed. Errors: Unreachable."""
        if self._task is None:
            return None
        self._task.cancel()
        (outcome,) = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(outcome, list):
            await self._replay.release(outcome)
        return outcome if isinstance(outcome, Exception) else None

    async def _fetch(self, version: int) -> list[Group]:
        while not (groups := await self._replay.sample(version)):
            pass
        return groups
