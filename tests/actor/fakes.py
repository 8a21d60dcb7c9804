"""Places at one fake engine, for tests of the actor without rollouts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from slipstream.actor.sampler import Sampler
from slipstream.records import NO_VERSION


class FakePlaces:
    """`capacity` places, all at one sampler."""

    def __init__(self, sampler: Sampler, *, capacity: int) -> None:
        self.capacity = capacity
        self.on_change: Callable[[], None] = lambda: None
        self.min_versions: list[int] = []
        """The least version that each group requested."""
        self._sampler = sampler
        self._free = asyncio.Semaphore(capacity)

    @asynccontextmanager
    async def place(self, group_id: str, *, min_version: int = NO_VERSION) -> AsyncIterator[Sampler]:
        self.min_versions.append(min_version)
        async with self._free:
            yield self._sampler

    def add(self, places: int) -> None:
        """Make further places free."""
        self.capacity += places
        for _ in range(places):
            self._free.release()
        self.on_change()
