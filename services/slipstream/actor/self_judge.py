"""The reward `self_judge`: the served policy judges how likely it is that an answer is right.

In Self-Rewarding Language Models, arXiv:2401.10020, the model writes a review with a score. Here nothing is
sampled: the reward is the probability of the positive verdict as the next token, against that of the negative
one. That has no sampling noise, and costs one prefill, of which the answers of a group share the cached
prefix.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

from slipstream.actor.sampler import Samplers
from slipstream.actor.verifier_client import Scorer
from slipstream.config import ConfigError
from slipstream.config.rewards import RewardConfig, SelfJudgeConfig
from slipstream.prompts.judging import judge_question
from slipstream.records import Completion, Outcome, Prompt, Reward
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import PromptTooLong, Tokens


class SelfJudge:
    """One configured reward of the kind `self_judge`."""

    def __init__(
        self, config: SelfJudgeConfig, *, samplers: Samplers, tokens: Tokens, metrics: Metrics, key: str
    ) -> None:
        """Errors: ConfigError naming `key` for verdicts that begin with the same token."""
        self._config = config
        self._samplers = samplers
        self._tokens = tokens
        self._metrics = metrics
        self._verdicts = verdict_tokens(config, tokens, key=key)
        for outcome in Outcome:
            metrics.count("scores_total", 0, reward=config.name, outcome=outcome.value)

    async def judge(self, prompt: Prompt, text: str) -> Reward:
        """Return the reward of an answer, from 0 to 1.

        An answer too long for a question about it is invalid; a probability that is not finite is an error of
        the reward. Errors: RolloutsLost, SamplingRefused.
        """
        question = judge_question(self._config.question, prompt, answer=self._tokens.harmless(text))
        try:
            token_ids = self._tokens.encode(question)
        except PromptTooLong:
            detail = "the question about it does not fit the model's context"
            return self._counted(Outcome.INVALID_ANSWER, 0.0, detail)
        with self._metrics.timing("reward_seconds", reward=self._config.name):
            right, _ = await self._samplers.beside(prompt.prompt_id).weigh(token_ids, self._verdicts)
        if not isfinite(right):
            return self._counted(Outcome.ERROR, 0.0, f"the policy's weights give {right} as a probability")
        return self._counted(Outcome.SCORE, right)

    def _counted(self, outcome: Outcome, value: float, detail: str = "") -> Reward:
        name = self._config.name
        self._metrics.count("scores_total", reward=name, outcome=outcome.value)
        return Reward(name=name, value=value, outcome=outcome, detail=detail)


class WithSelfJudges:
    """Scores by the verifier, and inserts the rewards of self-judges where the configuration lists them."""

    def __init__(
        self,
        verifier: Scorer,
        rewards: Sequence[RewardConfig],
        judges: Mapping[str, SelfJudge],
        *,
        metrics: Metrics,
    ) -> None:
        """`rewards`: of the run. `judges`: by the name of their reward."""
        self._verifier = verifier
        self._rewards = rewards
        self._judges = judges
        self._metrics = metrics

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        """Return the completions with complete reward vectors; withheld ones are unchanged.

        Errors: RolloutsLost, SamplingRefused, and those of the verifier's client.
        """
        scored = await self._verifier.score(prompt, completions)
        with self._metrics.waiting("self_judge"):
            return list(await asyncio.gather(*(self._judged(prompt, completion) for completion in scored)))

    async def _judged(self, prompt: Prompt, completion: Completion) -> Completion:
        if completion.withheld:
            return completion
        vector = list(completion.rewards)
        for position, judge in self._applying(prompt.source):
            vector.insert(position, await judge.judge(prompt, completion.text))
        return replace(completion, rewards=tuple(vector))

    def _applying(self, source: str) -> list[tuple[int, SelfJudge]]:
        """Return the judges that apply to a source, with their positions in its reward vector."""
        applying = [reward for reward in self._rewards if reward.applies_to(source)]
        judges = ((place, self._judges.get(reward.name)) for place, reward in enumerate(applying))
        return [(place, judge) for place, judge in judges if judge is not None]


def with_self_judges(
    verifier: Scorer, rewards: Sequence[RewardConfig], *, samplers: Samplers, tokens: Tokens, metrics: Metrics
) -> Scorer:
    """Return a scorer that adds the self-judges among the rewards to the verifier. Errors: ConfigError."""
    judges = {
        reward.name: SelfJudge(
            reward, samplers=samplers, tokens=tokens, metrics=metrics, key=f"rewards.{index}.verdicts"
        )
        for index, reward in enumerate(rewards)
        if isinstance(reward, SelfJudgeConfig)
    }
    return WithSelfJudges(verifier, rewards, judges, metrics=metrics) if judges else verifier


def verdict_tokens(config: SelfJudgeConfig, tokens: Tokens, *, key: str) -> tuple[int, int]:
    """Return the first token of each verdict. Errors: ConfigError unless both exist and differ."""
    right, wrong = (tokens.encode_text(verdict)[:1] for verdict in config.verdicts)
    if not right or not wrong or right == wrong:
        raise ConfigError(
            f"{key}: {config.verdicts[0]!r} and {config.verdicts[1]!r} begin with the same token of the "
            "model's tokenizer; choose verdicts that differ from their first token on"
        )
    return right[0], wrong[0]
