"""From the rewards of a batch to what its advantages are computed from: components, shaping, KL.

Shape suffixes: B completions of the batch in order, withheld ones among them; N reward components.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.algorithms.shaping import GroupSample, diversity, has_variance, soft_overlong
from slipstream.algorithms.spec import Shaping
from slipstream.records import Completion, FinishReason, Group

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

    def plus(self, component_B: torch.Tensor, *, weight: float) -> "BatchRewards":
        """With one more component; it says nothing where the completion has no say."""
        component_B = torch.where(self.total_B.isnan(), torch.nan, component_B.double())
        return replace(
            self,
            components_BN=torch.cat([self.components_BN, component_B[:, None]], dim=1),
            weights_N=torch.cat([self.weights_N, self.weights_N.new_tensor([weight])]),
        )


def batch_rewards(groups: Sequence[Group], weights: Mapping[str, float], shaping: Shaping) -> BatchRewards:
    """Rewards with the shaping by length; NaN for withheld completions, and for overlong ones that the filter
    takes out of the statistics.

    A group of equal task rewards that dynamic sampling let through, since its refills were used up, is not
    punished for length: nothing else would differ in it.
    """
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
    varied = [_varies(group, weights, shaping) for group in groups]
    shares = [
        soft_overlong(sum(c.mask), ramp) / ramp.factor if varied[index] else 0.0 for index, _, c in everything
    ]
    return rewards.plus(torch.tensor(shares), weight=ramp.factor)  # the factor also counts where gdpo whitens


def task_reward(completion: Completion, weights: Mapping[str, float]) -> float:
    """Weighted sum of the components, before any shaping; NaN where it was withheld."""
    if completion.withheld:
        return math.nan
    return sum(weights[reward.name] * reward.value for reward in completion.rewards)


def diversity_of(
    groups: Sequence[Group], weights: Mapping[str, float], shaping: Shaping, unvaried_share: float | None
) -> dict[str, float]:
    """Diversity of what was generated: of a batch that dynamic sampling has picked, with the rest put back.

    unvaried_share: of all groups generated of late, those whose rewards are equal; None where it is unknown.
    """
    samples, sampling = _group_samples(groups, weights), shaping.dynamic_sampling
    found = diversity(samples)
    if sampling is None:
        return found
    if unvaried_share is None:
        return found | {"reward_std": math.nan, "zero_variance_share": math.nan}
    varied = [sample for sample in samples if has_variance(sample.task_rewards, sampling.tolerance)]
    spread = diversity(varied)["reward_std"] if varied else 0.0
    return found | {"reward_std": spread * (1 - unvaried_share), "zero_variance_share": unvaried_share}


def _varies(group: Group, weights: Mapping[str, float], shaping: Shaping) -> bool:
    """Whether dynamic sampling, if it is on, finds that the task rewards of the group differ."""
    sampling = shaping.dynamic_sampling
    rewards = [task_reward(c, weights) for c in group.completions if not c.withheld]
    return sampling is None or has_variance(rewards, sampling.tolerance)


def _group_samples(groups: Sequence[Group], weights: Mapping[str, float]) -> list[GroupSample]:
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
