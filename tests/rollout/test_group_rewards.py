"""Rewards that look at a group see all of it, also when only some of its answers are tried again."""

import asyncio
from functools import partial

from rollout.fakes import served_by, small_config
from slipstream.config import VerifierConfig
from slipstream.config.rewards import NoRepeatConfig
from slipstream.records import Completion, FinishReason, Prompt
from slipstream.rollout.verifier_client import VerifierClient
from slipstream.v1.verifier_pb2_grpc import add_VerifierServicer_to_server
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.reward import Answer, Verdict, failed
from slipstream.verifier.rewards.no_repeat import NoRepeat
from slipstream.verifier.servicer import VerifierServicer
from verifier.scoring import Bench

PROMPT = Prompt(prompt_id="p", task="t", text="?", answer="2")
REWARDS = [{"name": "exact_match"}, {"name": "no_repeat"}]


def completion(text: str) -> Completion:
    return Completion(
        token_ids=(), logprobs=(), mask=(), spans=(), finish_reason=FinishReason.STOP, text=text
    )


class FailsThirdTime:
    """Fails at the third answer that it is asked about, and at no other."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, prompt: Prompt, answer: Answer) -> Verdict:
        self.asked.append(answer.text)
        return failed("no luck") if len(self.asked) == 3 else Verdict(value=1)


async def scored(*texts: str, rewards: object) -> tuple[list[list[float]], list[str]]:
    """The vectors of a group whose third answer has no verdict at first, and who was judged."""
    flaky = FailsThirdTime()
    bench = Bench(
        rewards={"flaky": Concurrently(flaky), "no_repeat": NoRepeat(NoRepeatConfig(name="no_repeat"))},
        config=VerifierConfig(workers=1),
    )
    config = small_config(rewards=rewards, verifier={"timeout_seconds": 5, "retries": 2})
    register = partial(add_VerifierServicer_to_server, VerifierServicer(bench.scorer))
    async with served_by(register, config) as channel:
        given = await VerifierClient(channel, config).score(PROMPT, [completion(text) for text in texts])
    return [[reward.value for reward in one.rewards] for one in given], flaky.asked


def test_a_duplicate_that_is_tried_again_alone_is_still_a_duplicate() -> None:
    vectors, asked = asyncio.run(scored("a", "b", "a", rewards=REWARDS))
    assert vectors == [[1, 1], [1, 1], [1, 0]]
    assert asked == ["a", "b", "a"] * 2


def test_without_a_reward_of_groups_only_the_open_answer_is_sent_again() -> None:
    _, asked = asyncio.run(scored("a", "b", "c", rewards=REWARDS[:1]))
    assert asked == ["a", "b", "c", "c"]
