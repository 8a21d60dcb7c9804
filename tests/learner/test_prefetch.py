"""What the fetch of the next batch raises is seen by somebody, also when nobody wants the batch any more."""

import asyncio
from typing import Any

import pytest
from learner.fakes import Events, FakeReplay
from slipstream.learner.prefetch import Prefetch


class Broken(FakeReplay):
    """Its second batch cannot be read."""

    async def sample(self, version: int, *, groups: int | None = None) -> Any:
        if version:
            raise ValueError("group 7 has no tokens")
        return await super().sample(version)


async def failed() -> Prefetch:
    """With the first batch taken, and the failure of the second one waiting."""
    replay: Any = Broken(Events(), batches=9)
    prefetch = Prefetch(replay, steps=9)
    await prefetch.take(0, asyncio.Event(), patience_seconds=5)
    await asyncio.sleep(0.01)
    return prefetch


def test_a_batch_that_is_wanted_raises_what_its_fetch_raised() -> None:
    async def run() -> None:
        prefetch = await failed()
        with pytest.raises(ValueError, match="group 7 has no tokens"):
            await prefetch.take(1, asyncio.Event(), patience_seconds=5)

    asyncio.run(run())


def test_a_batch_that_is_dropped_returns_it() -> None:
    async def run() -> Exception | None:
        return await (await failed()).drop()

    assert repr(asyncio.run(run())) == "ValueError('group 7 has no tokens')"


def test_a_fetch_that_is_only_cancelled_is_no_failure() -> None:
    async def run() -> Exception | None:
        replay: Any = FakeReplay(Events(), batches=1)
        prefetch = Prefetch(replay, steps=9)
        await prefetch.take(0, asyncio.Event(), patience_seconds=5)
        return await prefetch.drop()

    assert asyncio.run(run()) is None
