"""Scoring of groups: components at the same time, failures, and a full queue."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from slipstream.config import VerifierConfig
from slipstream.records import Outcome, Prompt, StepReward
from slipstream.rpc import codec
from slipstream.rpc.channel import call_with_retries, retry_after
from slipstream.rpc.errors import Busy, InvalidRequest
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict
from slipstream.verifier.scorer import MAX_DETAIL
from verifier.scoring import Bench, answer
from verifier.test_servicer import request, serve

PROMPT = Prompt(prompt_id="p1", task="t", text="?", answer="2")


class Held:
    """Scores every answer with `value` once `released` is set."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value
        self.entered = asyncio.Event()
        self.released = asyncio.Event()
        self.closed = False

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        self.entered.set()
        await self.released.wait()
        return [Verdict(value=self.value)] * len(answers)

    async def close(self) -> None:
        self.closed = True


class Returns:
    """Returns or raises `result`."""

    def __init__(self, result: Any) -> None:
        self._result = result

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        if isinstance(self._result, Exception):
            raise self._result
        return list(self._result)

    async def close(self) -> None:
        pass


def test_components_are_scored_concurrently() -> None:
    async def play() -> list[list[float]]:
        first, second = Held(1), Held(2)
        scoring = asyncio.create_task(
            Bench(rewards={"a": first, "b": second}).scorer.score(PROMPT, [answer("x"), answer("y")])
        )
        async with asyncio.timeout(5):
            await first.entered.wait()
            await second.entered.wait()
        second.released.set()
        first.released.set()
        return [[component.value for component in vector] for vector in await scoring]

    assert asyncio.run(play()) == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("result", "detail"),
    [
        (ZeroDivisionError("x" * 10_000), "ZeroDivisionError: xxx"),
        ([Verdict(value=1.0)], "1 verdicts for 2 answers"),
    ],
)
def test_a_failed_reward_is_an_error_of_every_answer_and_other_rewards_are_unaffected(
    result: Any, detail: str
) -> None:
    rewards = {"bad": Returns(result), "good": Returns([Verdict(value=1.0)] * 2)}
    bench = Bench(rewards=rewards)
    for bad, good in asyncio.run(bench.scorer.score(PROMPT, [answer("x"), answer("y")])):
        assert (bad.outcome, good.outcome, good.value) == (Outcome.ERROR, Outcome.SCORE, 1)
        assert detail in bad.detail
        assert len(bad.detail) <= MAX_DETAIL
    assert bench.sample("scores_total", reward="bad", outcome="error") == 2
    assert "reward failed prompt=p1 reward=bad" in bench.lines.getvalue()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_not_a_finite_number_is_an_error(value: float) -> None:
    bench = Bench(rewards={"a": Returns([Verdict(value=value)])})
    ((component,),) = asyncio.run(bench.scorer.score(PROMPT, [answer("x")]))
    assert (component.value, component.outcome) == (0, Outcome.ERROR)
    assert f"its score is {value}" in component.detail


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (((0.5, 2), (float("nan"), 4)), "the score of a step is no finite number"),
        (((0.5, 4), (0.5, 4)), "its steps end at the characters [4, 4]; they must rise"),
        (((0.5, 0),), "its steps end at the characters [0]"),
    ],
)
def test_invalid_scores_of_steps_are_an_error(steps: Any, message: str) -> None:
    scored = tuple(StepReward(value=value, text_end=end) for value, end in steps)
    bench = Bench(rewards={"a": Returns([Verdict(value=1.0, steps=scored)])})
    ((component,),) = asyncio.run(bench.scorer.score(PROMPT, [answer("x")]))
    assert (component.outcome, component.steps) == (Outcome.ERROR, ())
    assert message in component.detail


def test_the_scores_of_steps_are_in_the_response() -> None:
    scored = (StepReward(value=0.25, text_end=2), StepReward(value=1.0, text_end=5))
    bench = Bench(rewards={"a": Returns([Verdict(value=1.0, steps=scored)])})

    async def play() -> Any:
        async with serve(bench) as score:
            return (await score(request("x"))).vectors[0].rewards[0]

    assert codec.reward_from_proto(asyncio.run(play())).steps == scored


def test_a_detail_that_utf8_cannot_encode_does_not_break_the_response() -> None:
    bench = Bench(rewards={"a": Returns([Verdict(value=1.0, detail="odd \udcff")])})

    async def play() -> str:
        async with serve(bench) as score:
            return str((await score(request("x"))).vectors[0].rewards[0].detail)

    assert asyncio.run(play()) == "odd ?"


def test_a_prompt_that_cannot_be_judged_is_refused_each_time_and_logged_once() -> None:
    bench = Bench(rewards={"a": Returns(UnusableGroundTruth("prompt p1: no `answer`"))})
    for _ in range(3):
        with pytest.raises(UnusableGroundTruth):
            asyncio.run(bench.scorer.score(PROMPT, [answer("x")]))
    assert bench.lines.getvalue().count("prompt cannot be judged prompt=p1") == 1
    assert "(reward `a`)" in bench.lines.getvalue()
    assert bench.sample("answers_waiting") == 0


def test_a_request_without_answers_is_invalid() -> None:
    with pytest.raises(InvalidRequest, match="no answers"):
        asyncio.run(Bench(rewards={"a": Returns([])}).scorer.score(PROMPT, []))


def test_a_full_queue_refuses_with_a_retry_after_hint_until_it_has_free_slots() -> None:
    async def play() -> None:
        held = Held()
        bench = Bench(rewards={"held": held}, config=VerifierConfig(queue=4))
        first = asyncio.create_task(bench.scorer.score(PROMPT, [answer("x")] * 3))
        await held.entered.wait()
        assert bench.sample("answers_waiting") == 3
        with pytest.raises(Busy, match=r"3 answers are in work or wait, and verifier\.queue is 4") as refused:
            await bench.scorer.score(PROMPT, [answer("x")] * 2)
        assert 0.05 <= refused.value.retry_after_seconds <= 5
        assert bench.sample("answers_refused_total") == 2
        held.released.set()
        await first
        assert len(await bench.scorer.score(PROMPT, [answer("x")] * 2)) == 2
        assert bench.sample("answers_waiting") == 0

    asyncio.run(play())


def test_an_empty_queue_accepts_a_group_larger_than_itself() -> None:
    bench = Bench(rewards={"a": Returns([Verdict(value=1.0)] * 9)}, config=VerifierConfig(queue=4))
    assert len(asyncio.run(bench.scorer.score(PROMPT, [answer("x")] * 9))) == 9


def test_over_grpc_a_refusal_is_resource_exhausted_and_a_retry_succeeds() -> None:
    async def play() -> None:
        held = Held()
        bench = Bench(rewards={"held": held}, config=VerifierConfig(queue=1))
        async with serve(bench) as score:
            first = asyncio.ensure_future(score(request("x")))
            await held.entered.wait()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await score(request("x"))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert retry_after(refused.value) >= 0.05
            second = asyncio.create_task(
                call_with_retries("score", lambda: score(request("x")), give_up_after=20)
            )
            await asyncio.sleep(0.1)
            assert not second.done()
            held.released.set()
            assert (await first).vectors[0].rewards[0].value == 1
            assert (await second).vectors[0].rewards[0].value == 1

    asyncio.run(play())


def test_closing_closes_every_reward() -> None:
    async def play() -> None:
        rewards = {"a": Held(), "b": Held()}
        async with Bench(rewards=rewards):
            pass
        assert all(reward.closed for reward in rewards.values())

    asyncio.run(play())
