"""Groups of completions share the child processes fairly: a group that hangs does not delay the others."""

import asyncio
import time
from dataclasses import replace

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CustomConfig
from slipstream.processes.fair_pool import FairPool
from slipstream.records import Prompt
from verifier.scoring import Bench, answer

PROMPT = Prompt(prompt_id="hostile", task="t", text="?", answer="1")


def test_groups_take_turns_and_calls_of_one_group_keep_their_order() -> None:
    async def play() -> list[str]:
        turns: FairPool[int] = FairPool()
        order: list[str] = []

        async def wait(group: str, name: str) -> None:
            await turns.take(group)
            order.append(name)

        calls = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")]
        waiting = [asyncio.create_task(wait(*call)) for call in calls]
        await asyncio.sleep(0)
        for item in range(len(calls)):
            turns.put(item)
        await asyncio.gather(*waiting)
        return order

    assert asyncio.run(play()) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_child_given_to_a_cancelled_caller_goes_to_the_next_caller() -> None:
    async def play() -> list[int]:
        turns: FairPool[int] = FairPool()
        gone, late, patient = (asyncio.create_task(turns.take(name)) for name in ("gone", "late", "patient"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        turns.put(1)
        late.cancel()  # after it was given 1, before it runs again
        assert await patient == 1
        turns.put(2)
        return turns.take_free()

    assert asyncio.run(play()) == [2]


@pytest.fixture(autouse=True)
def importable_in_children(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath / "tests"), prepend=":")


def test_a_group_that_hangs_does_not_delay_another() -> None:
    async def play() -> tuple[float, float]:
        reward = CustomConfig(
            name="own", kind="custom", function="verifier.custom_rewards:misbehaves", timeout_seconds=0.2
        )
        async with Bench([reward], config=VerifierConfig(workers=1)) as bench:
            spinning = [answer("spin")] * 8
            hostile = asyncio.create_task(bench.scorer.score(PROMPT, spinning))
            await asyncio.sleep(0.05)
            started = time.monotonic()
            ((component,),) = await bench.scorer.score(replace(PROMPT, prompt_id="honest"), [answer("fine")])
            honest = time.monotonic() - started
            await hostile
            return component.value, honest / (time.monotonic() - started)

    value, share = asyncio.run(play())
    assert value == 1
    assert share < 0.5
