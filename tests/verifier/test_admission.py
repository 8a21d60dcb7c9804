"""Answers of callers that gave up keep their slots in the admission queue until they are scored."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.rewards import FormatConfig
from slipstream.records import Prompt
from slipstream.rpc.errors import Busy
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.adapters import Concurrently, EachAnswer
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict
from slipstream.verifier.scorer import Scorer, Vectors
from verifier.scoring import answer

PROMPT = Prompt(prompt_id="p1", task="t", text="?", answer="2")


class Slow:
    """A verifier with a cached reward that returns no verdict before `released` is set."""

    def __init__(self, *, queue: int) -> None:
        self.metrics, log = Metrics(), Log(pod="verifier", level="error")
        self.released = asyncio.Event()
        self.scored_texts: list[str] = []
        resources = Resources.make(VerifierConfig(queue=queue), metrics=self.metrics, log=log)
        cache = resources.reward_cache(FormatConfig(name="slow", pattern="x"), reads=lambda _: ())
        rewards = {"strict": EachAnswer(_strict), "slow": Concurrently(self._judge, cache=cache)}
        self.scorer = Scorer(rewards, queue=resources.queue, metrics=self.metrics, log=log)

    def score(self, *texts: str, prompt: Prompt = PROMPT) -> Coroutine[None, None, Vectors]:
        return self.scorer.score(prompt, [answer(text) for text in texts])

    async def give_up(self, *texts: str) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.score(*texts), 0.02)

    def waiting(self) -> float | None:
        return self.metrics.registry.get_sample_value("slipstream_answers_waiting")

    async def _judge(self, prompt: Prompt, scored_answer: Answer) -> Verdict:
        self.scored_texts.append(scored_answer.text)
        await self.released.wait()
        return Verdict(value=1.0)


def _strict(prompt: Prompt, scored_answer: Answer) -> Verdict:
    if not prompt.answer:
        raise UnusableGroundTruth("no answer")
    return Verdict(value=1.0)


def test_answers_of_a_caller_that_gave_up_keep_their_slots_until_they_are_scored() -> None:
    async def play() -> None:
        slow = Slow(queue=4)
        await slow.give_up("a", "b", "c")
        assert slow.waiting() == 3
        with pytest.raises(Busy, match="3 answers are in work or wait"):
            await slow.score("d", "e")
        slow.released.set()
        await asyncio.sleep(0.01)
        assert slow.waiting() == 0
        await slow.score("a", "b", "d", "e")
        assert slow.scored_texts == ["a", "b", "c", "d", "e"]

    asyncio.run(play())


def test_callers_that_give_up_in_turn_leave_no_more_answers_than_the_queue_holds() -> None:
    async def play() -> None:
        slow, refused = Slow(queue=16), 0
        for number in range(40):
            try:
                await slow.give_up(*(f"{number} {place}" for place in range(8)))
            except Busy:
                refused += 1
        assert (len(slow.scored_texts), slow.waiting(), refused) == (16, 16, 38)
        slow.released.set()
        await asyncio.sleep(0.01)
        assert slow.waiting() == 0

    asyncio.run(play())


def test_one_answer_of_two_callers_that_gave_up_has_one_slot() -> None:
    async def play() -> None:
        slow = Slow(queue=16)
        await asyncio.gather(slow.give_up("a"), slow.give_up("a"))
        assert slow.waiting() == 1

    asyncio.run(play())


def test_answers_keep_their_slots_for_other_rewards_if_one_refuses_the_prompt() -> None:
    async def play() -> None:
        slow = Slow(queue=2)
        for text in "ab":
            with pytest.raises(UnusableGroundTruth):
                await slow.score(text, prompt=replace(PROMPT, answer=""))
        await asyncio.sleep(0.01)
        assert (slow.waiting(), slow.scored_texts) == (2, ["a", "b"])
        with pytest.raises(Busy):
            await slow.score("c")

    asyncio.run(play())
