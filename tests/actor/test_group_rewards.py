"""A reward that compares the answers of a group sees the whole group, also when only some are retried."""

import asyncio
from functools import partial

from rollout.fakes import served_by, small_config
from slipstream.actor.verifier_client import VerifierClient
from slipstream.config import VerifierConfig
from slipstream.config.rewards import NoRepeatConfig
from slipstream.records import Completion, FinishReason, Prompt
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
    """Fails at the third call, and at no other."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    async def __call__(self, prompt: Prompt, answer: Answer) -> Verdict:
        self.answers.append(answer.text)
        return failed("no luck") if len(self.answers) == 3 else Verdict(value=1)


async def scored(*texts: str, rewards: object) -> tuple[list[list[float]], list[str]]:
    """Return the reward vectors of a group whose third answer fails at first, and all scored answers."""
    flaky = FailsThirdTime()
    bench = Bench(
        rewards={"flaky": Concurrently(flaky), "no_repeat": NoRepeat(NoRepeatConfig(name="no_repeat"))},
        config=VerifierConfig(workers=1),
    )
    config = small_config(rewards=rewards, verifier={"timeout_seconds": 5, "retries": 2})
    register = partial(add_VerifierServicer_to_server, VerifierServicer(bench.scorer, bench.programs))
    async with served_by(register, config) as channel:
        completions = await VerifierClient(channel, config.verifier, rewards=config.rewards).score(
            PROMPT, [completion(text) for text in texts]
        )
    return [[reward.value for reward in one.rewards] for one in completions], flaky.answers


def test_a_duplicate_that_is_retried_is_still_a_duplicate() -> None:
    vectors, answers = asyncio.run(scored("a", "b", "a", rewards=REWARDS))
    assert vectors == [[1, 1], [1, 1], [1, 0]]
    assert answers == ["a", "b", "a"] * 2


def test_without_a_reward_of_groups_only_the_unscored_answer_is_sent_again() -> None:
    _, answers = asyncio.run(scored("a", "b", "c", rewards=REWARDS[:1]))
    assert answers == ["a", "b", "c", "c"]
