"""An error of the prefetch of the next batch is always raised or logged, also if the batch is not needed."""

import asyncio
import io
from collections.abc import Sequence
from typing import Any

import pytest
from learner.fakes import Events, FakeReplay
from slipstream.learner.prefetch import Prefetch
from slipstream.records import Group
from slipstream.telemetry.logs import Log

LOG = Log(pod="learner", stream=io.StringIO())


class Broken(FakeReplay):
    """Its second batch cannot be read."""

    async def sample(self, version: int, *, groups: int | None = None) -> Any:
        if version:
            raise ValueError("group 7 has no tokens")
        return await super().sample(version)


async def failed() -> Prefetch:
    """With the first batch taken, and the failure of the second one waiting."""
    replay: Any = Broken(Events(), batches=9)
    prefetch = Prefetch(replay, steps=9, log=LOG)
    await prefetch.take(0, asyncio.Event(), patience_seconds=5)
    await asyncio.sleep(0.01)
    return prefetch


def test_taking_a_batch_raises_the_error_of_its_fetch() -> None:
    async def run() -> None:
        prefetch = await failed()
        with pytest.raises(ValueError, match="group 7 has no tokens"):
            await prefetch.take(1, asyncio.Event(), patience_seconds=5)

    asyncio.run(run())


def test_releasing_a_batch_returns_the_error_of_its_fetch() -> None:
    async def run() -> BaseException | None:
        return await (await failed()).release()

    assert repr(asyncio.run(run())) == "ValueError('group 7 has no tokens')"


def test_a_fetch_that_is_only_cancelled_is_no_failure() -> None:
    async def run() -> BaseException | None:
        replay: Any = FakeReplay(Events(), batches=1)
        prefetch = Prefetch(replay, steps=9, log=LOG)
        await prefetch.take(0, asyncio.Event(), patience_seconds=5)
        return await prefetch.release()

    assert asyncio.run(run()) is None


def test_the_time_of_a_teacher_is_no_time_without_a_batch() -> None:
    """What ends a run that starves counts only the wait for replay."""

    async def slowly(groups: Sequence[Group]) -> list[Group]:
        await asyncio.sleep(0.3)
        return list(groups)

    async def run() -> list[Group] | None:
        replay: Any = FakeReplay(Events(), batches=1)
        prefetch = Prefetch(replay, steps=1, log=LOG, teach=slowly)
        return await prefetch.take(0, asyncio.Event(), patience_seconds=0.1)

    assert len(asyncio.run(run()) or ()) == 2


def test_a_batch_that_waits_for_a_teacher_can_be_released() -> None:
    events = Events()

    async def never(groups: Sequence[Group]) -> list[Group]:
        events.note("teach")
        await asyncio.Event().wait()
        return []

    async def run() -> BaseException | None:
        replay: Any = FakeReplay(events, batches=1)
        prefetch = Prefetch(replay, steps=9, log=LOG, teach=never)
        await prefetch.sampled(0, asyncio.Event(), patience_seconds=5)
        await events.wait_for("teach")
        return await prefetch.release()

    assert asyncio.run(run()) is None
    assert events == ["sample 0", "teach", "release 0-0,0-1"]
