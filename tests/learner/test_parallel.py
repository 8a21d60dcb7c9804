"""Coroutines in parallel: results in order, the first failure by its own type, nothing left running."""

import asyncio

import pytest
from slipstream.parallel import all_of, beside, both


async def after(seconds: float, value: int, ended: list[int]) -> int:
    try:
        await asyncio.sleep(seconds)
    finally:
        ended.append(value)
    return value


async def failing() -> int:
    await asyncio.sleep(0)
    raise LookupError("the first failure")


def test_results_come_in_the_order_of_the_coroutines() -> None:
    async def run() -> None:
        ended: list[int] = []
        assert await all_of(after(delay, value, ended) for value, delay in ((1, 0.02), (2, 0.0))) == [1, 2]
        assert await both(after(0.01, 3, ended), after(0, 4, ended)) == (3, 4)
        assert ended == [2, 1, 4, 3]

    asyncio.run(run())


def test_a_failure_is_raised_by_its_own_type_and_cancels_the_others() -> None:
    async def run() -> None:
        ended: list[int] = []
        with pytest.raises(LookupError, match="the first failure"):
            await both(after(60, 1, ended), failing())
        with pytest.raises(LookupError, match="the first failure"):
            await all_of([after(60, 2, ended), failing()])
        assert ended == [1, 2]

    asyncio.run(asyncio.wait_for(run(), 5))


def test_a_coroutine_beside_a_block_ends_with_the_block() -> None:
    async def run() -> None:
        ended: list[int] = []

        async def forever() -> None:
            await after(60, 1, ended)

        async def late() -> None:
            async with beside(forever()):
                await asyncio.sleep(0)
                raise TimeoutError

        async with beside(forever()):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await late()
        assert ended == [1, 1]

    asyncio.run(asyncio.wait_for(run(), 5))


def test_a_failure_beside_a_block_ends_the_block() -> None:
    async def fails() -> None:
        await failing()

    async def run() -> None:
        with pytest.raises(LookupError, match="the first failure"):
            async with beside(fails()):
                await asyncio.sleep(60)

    asyncio.run(asyncio.wait_for(run(), 5))
