"""The rewards of a batch as its advantages read them: components, shaping, KL.

Shape suffixes: B completions of the batch in order, withheld ones among them; N reward components.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.algorithms.advantages.completions import component_sum
from slipstream.algorithms.shaping import GroupSample, diversity, has_variance, soft_overlong
from slipstream.algorithms.spec import Shaping
from slipstream.records import Completion, FinishReason, Group

SOFT_OVERLONG, KL = "soft_overlong", "kl"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRewards:
    """Every reward component of every completion; a row of NaN for a completion outside the statistics."""

    components_BN: torch.Tensor
    """float64; 0 where a component does not apply."""
    applies_BN: torch.Tensor
    """Whether a component applies to the completion, by its source, bool; true for a withheld completion."""
    weights_N: torch.Tensor
    """Factor of each component in the total."""
    group_ids_B: torch.Tensor
    lengths_B: torch.Tensor
    """Tokens that the policy sampled, in all segments."""
    keys: tuple[str, ...]
    """Source of each completion in a mixture, or else its task: running baselines are kept by it."""

    @property
    def total_B(self) -> torch.Tensor:
        """The weighted sum of the components that apply."""
        return component_sum(self.components_BN * self.weights_N)

    def plus(self, component_B: torch.Tensor, *, weight: float) -> "BatchRewards":
        """Return the rewards with one more component, which is NaN where the others are NaN."""
        component_B = torch.where(self.total_B.isnan(), torch.nan, component_B.double())
        return replace(
            self,
            components_BN=torch.cat([self.components_BN, component_B[:, None]], dim=1),
            applies_BN=torch.nn.functional.pad(self.applies_BN, (0, 1), value=True),
            weights_N=torch.cat([self.weights_N, self.weights_N.new_tensor([weight])]),
        )


def batch_rewards(groups: Sequence[Group], weights: Mapping[str, float], shaping: Shaping) -> BatchRewards:
    """Return the rewards, with the shaping by length.

    Withheld completions are NaN, and so are overlong ones that the filter removes from the statistics. A
    group of equal task rewards, which dynamic sampling let through after its last refill, gets no penalty for
    length: lengths would be the only difference in it. The penalty for the length of a completion is that of
    its longest segment, because the token budget is that of a segment.
    """
    completions = [(index, group, c) for index, group in enumerate(groups) for c in group.completions]
    rows = [_components(c, weights, shaping) for _, _, c in completions]
    applying = [_applying(c, weights) for _, _, c in completions]
    rewards = BatchRewards(
        components_BN=torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(weights)),
        applies_BN=torch.tensor(applying, dtype=torch.bool).reshape(len(rows), len(weights)),
        weights_N=torch.tensor(list(weights.values()), dtype=torch.float64),
        group_ids_B=torch.tensor([index for index, _, _ in completions], dtype=torch.int64),
        lengths_B=torch.tensor([c.sampled for _, _, c in completions], dtype=torch.float64),
        keys=tuple(group.prompt.source or group.prompt.task for _, group, _ in completions),
    )
    ramp = shaping.soft_overlong
    if ramp is None:
        return rewards
    varied = [_varies(group, weights, shaping) for group in groups]
    shares = [
        soft_overlong(_longest(c), ramp) / ramp.factor if varied[index] else 0.0
        for index, _, c in completions
    ]
    return rewards.plus(torch.tensor(shares), weight=ramp.factor)  # the factor also counts where gdpo whitens


def task_reward(completion: Completion, weights: Mapping[str, float]) -> float:
    """Return the weighted sum of the components, before shaping; NaN for a withheld completion."""
    if completion.withheld:
        return math.nan
    return sum(weights[reward.name] * reward.value for reward in completion.rewards)


def diversity_of(
    groups: Sequence[Group], weights: Mapping[str, float], shaping: Shaping, unvaried_share: float | None
) -> dict[str, float]:
    """Return the diversity of the generated groups, by those of a batch.

    Dynamic sampling keeps groups of equal rewards out of the batch; they are counted by `unvaried_share`,
    their share of all recently generated groups, None if unknown.
    """
    samples, sampling = _group_samples(groups, weights), shaping.dynamic_sampling
    metrics = diversity(samples)
    if sampling is None:
        return metrics
    if unvaried_share is None:
        return metrics | {"reward_std": math.nan, "zero_variance_share": math.nan}
    varied = [sample for sample in samples if has_variance(sample.task_rewards, sampling.tolerance)]
    spread = diversity(varied)["reward_std"] if varied else 0.0
    return metrics | {"reward_std": spread * (1 - unvaried_share), "zero_variance_share": unvaried_share}


def _varies(group: Group, weights: Mapping[str, float], shaping: Shaping) -> bool:
    """Return whether dynamic sampling is off, or the task rewards of the group differ by its tolerance."""
    sampling = shaping.dynamic_sampling
    rewards = [task_reward(c, weights) for c in group.completions if not c.withheld]
    return sampling is None or has_variance(rewards, sampling.tolerance)


def _group_samples(groups: Sequence[Group], weights: Mapping[str, float]) -> list[GroupSample]:
    """Return the sampled tokens, texts and rewards of the groups, for the diversity metrics."""
    return [
        GroupSample(
            token_ids=tuple(_sampled(c) for c in group.completions),
            texts=tuple(c.text for c in group.completions),
            task_rewards=tuple(task_reward(c, weights) for c in group.completions if not c.withheld),
        )
        for group in groups
    ]


def _sampled(completion: Completion) -> tuple[int, ...]:
    """Return the tokens that the policy sampled, one segment after the other."""
    return tuple(t for s in completion.segments for t, m in zip(s.token_ids, s.mask, strict=True) if m)


def _longest(completion: Completion) -> int:
    """Return the largest number of tokens that the policy sampled in one segment."""
    return max(sum(segment.mask) for segment in completion.segments)


def _components(completion: Completion, weights: Mapping[str, float], shaping: Shaping) -> list[float]:
    overlong = completion.finish_reason is FinishReason.LENGTH
    filtered = shaping.overlong_filter is not None and shaping.overlong_filter.statistics == "drop"
    if completion.withheld or (overlong and filtered):
        return [math.nan] * len(weights)
    value = {reward.name: reward.value for reward in completion.rewards}
    return [value.get(name, 0.0) for name in weights]


def _applying(completion: Completion, weights: Mapping[str, float]) -> list[bool]:
    """Return which components apply: those in the vector, or all if the completion is withheld."""
    names = {reward.name for reward in completion.rewards}
    return [completion.withheld or name in names for name in weights]
