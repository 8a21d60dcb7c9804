"""From the rewards of a batch to what its advantages are computed from: components, shaping, KL.

Shape suffixes: B completions of the batch in order, withheld ones among them; N reward components.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.algorithms.shaping import GroupSample, soft_overlong
from slipstream.algorithms.spec import Shaping
from slipstream.types import Completion, FinishReason, Group

SOFT_OVERLONG, KL = "soft_overlong", "kl"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRewards:
    """Every reward component of every completion; a row of NaN where the completion has no say."""

    components_BN: torch.Tensor
    """float64."""
    weights_N: torch.Tensor
    """Factor of each component in the total."""
    group_ids_B: torch.Tensor
    lengths_B: torch.Tensor
    """Tokens that the policy sampled."""
    keys: tuple[str, ...]
    """Task of each completion, by which running baselines are kept."""

    @property
    def total_B(self) -> torch.Tensor:
        """Weighted sum of the components."""
        return (self.components_BN * self.weights_N).sum(dim=1)

    def plus(self, component_B: torch.Tensor) -> "BatchRewards":
        """With one more component, of weight 1."""
        return replace(
            self,
            components_BN=torch.cat([self.components_BN, component_B.double()[:, None]], dim=1),
            weights_N=torch.cat([self.weights_N, torch.ones(1, dtype=torch.float64)]),
        )


def batch_rewards(groups: Sequence[Group], weights: Mapping[str, float], shaping: Shaping) -> BatchRewards:
    """Rewards with the shaping by length; NaN for withheld completions, and for overlong ones that the filter
    takes out of the statistics."""
    everything = [(index, group, c) for index, group in enumerate(groups) for c in group.completions]
    rows = [_components(c, weights, shaping) for _, _, c in everything]
    rewards = BatchRewards(
        components_BN=torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(weights)),
        weights_N=torch.tensor(list(weights.values()), dtype=torch.float64),
        group_ids_B=torch.tensor([index for index, _, _ in everything], dtype=torch.int64),
        lengths_B=torch.tensor([sum(c.mask) for _, _, c in everything], dtype=torch.float64),
        keys=tuple(group.prompt.task for _, group, _ in everything),
    )
    ramp = shaping.soft_overlong
    if ramp is None:
        return rewards
    return rewards.plus(torch.tensor([soft_overlong(sum(c.mask), ramp) for _, _, c in everything]))


def task_reward(completion: Completion, weights: Mapping[str, float]) -> float:
    """Weighted sum of the components, before any shaping; NaN where it was withheld."""
    if completion.withheld:
        return math.nan
    return sum(weights[reward.name] * reward.value for reward in completion.rewards)


def group_samples(groups: Sequence[Group], weights: Mapping[str, float]) -> list[GroupSample]:
    """The groups as the diversity metrics want them: what was sampled, and the rewards that there are."""
    return [
        GroupSample(
            token_ids=tuple(_sampled(c) for c in group.completions),
            texts=tuple(c.text for c in group.completions),
            task_rewards=tuple(task_reward(c, weights) for c in group.completions if not c.withheld),
        )
        for group in groups
    ]


def _sampled(completion: Completion) -> tuple[int, ...]:
    return tuple(t for t, m in zip(completion.token_ids, completion.mask, strict=True) if m)


def _components(completion: Completion, weights: Mapping[str, float], shaping: Shaping) -> list[float]:
    overlong = completion.finish_reason is FinishReason.LENGTH
    filtered = shaping.overlong_filter is not None and shaping.overlong_filter.statistics == "drop"
    if completion.withheld or (overlong and filtered):
        return [math.nan] * len(weights)
    value = {reward.name: reward.value for reward in completion.rewards}
    return [value.get(name, 0.0) for name in weights]
