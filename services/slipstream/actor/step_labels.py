"""Labels of the steps of an answer: the share of right answers among completions that continue from a step.

Math-Shepherd, arXiv:2312.08935: from the end of each step the policy completes the solution N times, and the
verifier scores the final answers. The share of right answers is the soft estimate of the step; the hard
estimate is 1 if any answer is right.

    answer ─▶ verifier ─▶ cut into steps ─┬▶ prefix 1 ─▶ N completions ─▶ verifier ─▶ share 1 ┐
                                          ├▶ prefix 2 ─▶ N completions ─▶ verifier ─▶ share 2 ├─▶ reward
                                          └▶ all of it ─────────────────────────────▶ share K ┘
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from slipstream.actor.sampler import Samplers
from slipstream.actor.seeds import stable_seed
from slipstream.actor.steps import with_token_ends
from slipstream.actor.transcript import Transcript
from slipstream.actor.verifier_client import Scorer
from slipstream.config import RunConfig
from slipstream.config.stages import Stage, StepLabelsStage
from slipstream.prompts.steps import steps_with_ends
from slipstream.records import Completion, Prompt, Reward, Sampling, StepReward, Turn
from slipstream.tokens import PromptTooLong, Tokens


class StepLabels:
    """Scores by `scorer`, and adds a label for each step of an answer to its reward named `reward`.

    Invariant: an answer has labels for all of its steps or for none. It has none if it is withheld, has no
    step or more than `stage.max_steps`, or has a step whose completions were all withheld.
    """

    def __init__(
        self,
        scorer: Scorer,
        stage: StepLabelsStage,
        *,
        reward: str,
        seed: int,
        samplers: Samplers,
        tokens: Tokens,
        sampling: Sampling,
    ) -> None:
        """`reward`: name of the reward for right answers; `sampling`: of whole answers."""
        self._scorer = scorer
        self._stage = stage
        self._reward = reward
        self._seed = seed
        self._samplers = samplers
        self._tokens = tokens
        self._sampling = sampling

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        """Return the completions with their reward vectors, in order.

        Errors: those of `scorer`, RolloutsLost and SamplingRefused.
        """
        scored = await self._scorer.score(prompt, completions)
        try:
            prompt_token_ids = self._tokens.encode(prompt)
        except PromptTooLong:  # the group has no completions
            return scored
        return list(await asyncio.gather(*(self._labelled(prompt, prompt_token_ids, c) for c in scored)))

    async def _labelled(
        self, prompt: Prompt, prompt_token_ids: tuple[int, ...], answer: Completion
    ) -> Completion:
        ends = [end for _, end in steps_with_ends(answer.text, self._stage.separator)]
        if answer.withheld or not 0 < len(ends) <= self._stage.max_steps:
            return answer
        steps = tuple(StepReward(value=0.0, text_end=end) for end in ends)
        placed = with_token_ends(_with_steps(answer, self._reward, steps), self._tokens.decode)
        steps = _reward_of(placed, self._reward).steps
        shares = await asyncio.gather(
            *(self._share(prompt, prompt_token_ids, answer, step) for step in steps[:-1])
        )
        shares.append(self._right(answer))
        labelled = tuple(
            replace(step, value=share) for step, share in zip(steps, shares, strict=True) if share is not None
        )
        return _with_steps(answer, self._reward, labelled) if len(labelled) == len(steps) else answer

    async def _share(
        self, prompt: Prompt, prompt_token_ids: tuple[int, ...], answer: Completion, step: StepReward
    ) -> float | None:
        """Return the share of right answers among the scored completions from a step; None without any.

        If the step ends at the token limit, there is nothing to sample, and the answer itself is scored.
        """
        left = self._sampling.max_tokens - step.token_end
        if left < 1:
            return self._right(answer)
        prefix = answer.token_ids[: step.token_end]
        sampler = self._samplers.beside(prompt.prompt_id)
        seeds = [stable_seed(self._seed, *prompt_token_ids, *prefix, k) for k in range(self._stage.samples)]
        turns = await asyncio.gather(
            *(
                sampler.sample(prompt_token_ids + prefix, replace(self._sampling, max_tokens=left, seed=seed))
                for seed in seeds
            )
        )
        scored = await self._scorer.score(prompt, [self._continued(prefix, turn) for turn in turns])
        right = [share for share in map(self._right, scored) if share is not None]
        return sum(right) / len(right) if right else None

    def _continued(self, prefix: tuple[int, ...], turn: Turn) -> Completion:
        """Return the prefix and the turn sampled after it, as one answer for the verifier."""
        transcript = Transcript()
        transcript.add(replace(turn, routed_experts=None))
        sampled = transcript.completion()
        text = self._tokens.decode(prefix + sampled.token_ids)
        return replace(sampled, text=text)

    def _right(self, answer: Completion) -> float | None:
        """Return 1 for a right answer, 0 for a wrong one, None for a withheld one."""
        if answer.withheld:
            return None
        return float(_reward_of(answer, self._reward).value >= self._stage.least_reward)


def with_step_labels(
    scorer: Scorer,
    config: RunConfig,
    *,
    samplers: Samplers,
    tokens: Tokens,
    sampling: Sampling,
) -> Scorer:
    """Return a scorer that labels steps too, if the run is a `step_labels` stage."""
    stage = label_stage(config.stages)
    if stage is None:
        return scorer
    return StepLabels(
        scorer,
        stage,
        reward=config.evaluation.reward,
        seed=config.seed,
        samplers=samplers,
        tokens=tokens,
        sampling=sampling,
    )


def label_stage(stages: Sequence[Stage]) -> StepLabelsStage | None:
    """Return the stage that labels steps; None if the run has none."""
    return next((stage for stage in stages if isinstance(stage, StepLabelsStage)), None)


def _reward_of(answer: Completion, name: str) -> Reward:
    return next(reward for reward in answer.rewards if reward.name == name)


def _with_steps(answer: Completion, name: str, steps: tuple[StepReward, ...]) -> Completion:
    return replace(
        answer,
        rewards=tuple(
            replace(reward, steps=steps if reward.name == name else ()) for reward in answer.rewards
        ),
    )
