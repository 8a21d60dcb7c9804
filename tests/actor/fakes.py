"""Places at one fake engine, and the environments of a run, for tests of the actor without rollouts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from slipstream.actor.environment import BoundEnvironment, Environment, EpisodeBounds
from slipstream.actor.sampler import Sampler
from slipstream.config.sources import BySource
from slipstream.records import NO_VERSION


def alone(environment: Environment, *, max_tokens: int) -> BySource[BoundEnvironment]:
    """Return the environments of a run with one source."""
    bounds = EpisodeBounds(max_tokens=max_tokens)
    return BySource({"": BoundEnvironment(environment=environment, bounds=bounds)})


class FakePlaces:
    """`capacity` places, all at one sampler."""

    def __init__(self, sampler: Sampler, *, capacity: int) -> None:
        self.capacity = capacity
        self.on_change: Callable[[], None] = lambda: None
        self.min_versions: list[int] = []
        """The oldest version that each group asked for."""
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
