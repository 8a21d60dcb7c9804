"""Labels of the steps of an answer: how often completions that are sampled behind a step come out right.

Math-Shepherd, arXiv:2312.08935: from the end of each step the policy completes the solution N times, and the
verifier judges the final answers. The share that is right is the soft estimate of the step; the hard one is 1
where any is right.

    answer ─▶ verifier ─▶ cut into steps ─┬▶ prefix 1 ─▶ N completions ─▶ verifier ─▶ share 1 ┐
                                          ├▶ prefix 2 ─▶ N completions ─▶ verifier ─▶ share 2 ├─▶ reward
                                          └▶ all of it ─────────────────────────────▶ share K ┘
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace

from slipstream.config import RunConfig
from slipstream.config.stages import StepLabelsStage
from slipstream.prompts.steps import steps_with_ends
from slipstream.records import Completion, Prompt, Reward, StepReward
from slipstream.rollout.engine import Engine, Sampling, Turn
from slipstream.rollout.environment import Episode
from slipstream.rollout.steps import with_token_ends
from slipstream.rollout.verifier_client import Scorer
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import PromptTooLong, Tokens


class StepLabels:
    """Scores as `scores` does, and gives the reward that judges the answer a share for each step.

    Invariant: an answer has the shares of all of its steps, or none: one that is withheld, has no step or
    more than `stage.max_steps`, or has a step behind which no completion could be judged.
    """

    def __init__(
        self,
        scores: Scorer,
        stage: StepLabelsStage,
        *,
        reward: str,
        seed: int,
        engine: Engine,
        tokens: Tokens,
        sampling: Sampling,
        metrics: Metrics,
    ) -> None:
        """`reward`: the component that says whether an answer is right; `sampling`: of a whole answer."""
        self._scores = scores
        self._stage = stage
        self._reward = reward
        self._seed = seed
        self._engine = engine
        self._tokens = tokens
        self._sampling = sampling
        self._metrics = metrics

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        """The completions with their vectors, in order. Errors: those of `scores`, and EngineDied."""
        scored = await self._scores.score(prompt, completions)
        try:
            prompt_token_ids = self._tokens.encode(prompt)
        except PromptTooLong:  # then there are no completions
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
        known = tuple(
            replace(step, value=share) for step, share in zip(steps, shares, strict=True) if share is not None
        )
        return _with_steps(answer, self._reward, known) if len(known) == len(steps) else answer

    async def _share(
        self, prompt: Prompt, prompt_token_ids: tuple[int, ...], answer: Completion, step: StepReward
    ) -> float | None:
        """Share of the completions behind a step that is right, of those that could be judged.

        Behind a step at which the budget of tokens is used up, the answer ends as it is.
        """
        left = self._sampling.max_tokens - step.token_end
        if left < 1:
            return self._right(answer)
        prefix = answer.token_ids[: step.token_end]
        seeds = [stable_seed(self._seed, *prompt_token_ids, *prefix, k) for k in range(self._stage.samples)]
        turns = await asyncio.gather(
            *(
                self._engine.sample(
                    prompt_token_ids + prefix, replace(self._sampling, max_tokens=left, seed=seed)
                )
                for seed in seeds
            )
        )
        self._metrics.count("tokens_generated_total", sum(len(turn.token_ids) for turn in turns))
        judged = await self._scores.score(prompt, [self._continued(prefix, turn) for turn in turns])
        right = [share for share in map(self._right, judged) if share is not None]
        return sum(right) / len(right) if right else None

    def _continued(self, prefix: tuple[int, ...], turn: Turn) -> Completion:
        """What the verifier judges: the prefix and what was sampled behind it, as one answer."""
        episode = Episode()
        episode.add(replace(turn, routed_experts=None))
        sampled = episode.completion()
        text = self._tokens.decode(prefix + sampled.token_ids)
        return replace(sampled, text=text)

    def _right(self, answer: Completion) -> float | None:
        """1 for a right answer, 0 for a wrong one, None for one that could not be judged."""
        if answer.withheld:
            return None
        return float(_reward_of(answer, self._reward).value >= self._stage.least_reward)


def stable_seed(*parts: int) -> int:
    """A seed below 2^63 that depends on the numbers alone, on every machine."""
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def with_step_labels(
    scores: Scorer,
    config: RunConfig,
    *,
    engine: Engine,
    tokens: Tokens,
    sampling: Sampling,
    metrics: Metrics,
) -> Scorer:
    """The scores, and those of steps where the run is a stage that labels them."""
    stage = label_stage(config)
    if stage is None:
        return scores
    return StepLabels(
        scores,
        stage,
        reward=config.evaluation.reward,
        seed=config.seed,
        engine=engine,
        tokens=tokens,
        sampling=sampling,
        metrics=metrics,
    )


def label_stage(config: RunConfig) -> StepLabelsStage | None:
    """The stage that labels steps, where the configuration is of one."""
    return next((stage for stage in config.stages if isinstance(stage, StepLabelsStage)), None)


def _reward_of(answer: Completion, name: str) -> Reward:
    return next(reward for reward in answer.rewards if reward.name == name)


def _with_steps(answer: Completion, name: str, steps: tuple[StepReward, ...]) -> Completion:
    return replace(
        answer,
        rewards=tuple(
            replace(reward, steps=steps if reward.name == name else ()) for reward in answer.rewards
        ),
    )
