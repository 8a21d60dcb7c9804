"""Places at one fake engine, and the environments of a run, for tests of the actor without rollouts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from slipstream.actor.environment import BoundEnvironment, Environment, EpisodeBounds
from slipstream.actor.sampler import GroupPlace, Sampler, Watch
from slipstream.config.sources import BySource
from slipstream.records import NO_VERSION, Sampling, Turn


class OneSampler:
    """Samplers of requests without a place, all the same; `prompts` are those that were asked for."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.prompts: list[str] = []

    def beside(self, prompt_id: str) -> Sampler:
        self.prompts.append(prompt_id)
        return self._sampler


def alone(
    environment: Environment, *, max_tokens: int, end_seconds: float | None = None
) -> BySource[BoundEnvironment]:
    """Return the environments of a run with one source."""
    bounds = EpisodeBounds(max_tokens=max_tokens, end_seconds=end_seconds)
    return BySource({"": BoundEnvironment(environment=environment, bounds=bounds)})


class _PlaceAt:
    """The place of a group at a sampler."""

    over_age = False

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    async def sample(
        self, prompt_token_ids: tuple[int, ...], sampling: Sampling, watch: Watch | None = None
    ) -> Turn:
        watched = () if watch is None else (watch,)
        return await self._sampler.sample(prompt_token_ids, sampling, *watched)

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        return await self._sampler.weigh(prompt_token_ids, candidates)


class FakePlaces:
    """`capacity` places, all at one sampler."""

    def __init__(self, sampler: Sampler, *, capacity: int) -> None:
        self.capacity = capacity
        self.on_change: Callable[[], None] = lambda: None
        self.min_versions: list[int] = []
        """The least version that each group requested."""
        self.engines_lost: list[int] = []
        """The engines that each group's prompt ended before."""
        self._sampler = sampler
        self._free = asyncio.Semaphore(capacity)

    @asynccontextmanager
    async def place(
        self,
        group_id: str,
        *,
        prompt_id: str,
        min_version: int = NO_VERSION,
        engines_lost: int = 0,
        on_tokens: Callable[[str], None] = lambda _: None,
    ) -> AsyncIterator[GroupPlace]:
        self.min_versions.append(min_version)
        self.engines_lost.append(engines_lost)
        async with self._free:
            yield _PlaceAt(self._sampler)

    def add(self, places: int) -> None:
        """Make further places free."""
        self.capacity += places
        for _ in range(places):
            self._free.release()
        self.on_change()
