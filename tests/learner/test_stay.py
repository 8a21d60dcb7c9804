"""A finished learner can stay alive, so that Kubernetes does not start it again."""

import asyncio
from typing import cast

import pytest
from slipstream.learner.__main__ import train
from slipstream.learner.loop import Loop


class DoneLoop:
    """Has no step left to do."""

    async def run(self, stop: asyncio.Event) -> None:
        return None


def stayed_until_the_stop(*, stay: bool) -> bool:
    """Whether training went on until the stop, with what goes on beside it."""

    async def scene() -> bool:
        stop, beats = asyncio.Event(), []

        async def beat() -> None:
            while True:
                beats.append(1)
                await asyncio.sleep(0.01)

        training = asyncio.create_task(train(cast(Loop, DoneLoop()), (beat(),), stop, stay=stay))
        await asyncio.sleep(0.1)
        stayed = not training.done() and len(beats) > 2
        stop.set()
        await asyncio.wait_for(training, 5)
        return stayed

    return asyncio.run(scene())


@pytest.mark.parametrize("stay", [False, True])
def test_a_finished_learner_stays_until_the_stop_only_when_told_to(stay: bool) -> None:
    assert stayed_until_the_stop(stay=stay) is stay
