"""What the ledger needs to know of a group, computed from its values alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.types import Completion, Group, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSum:
    """One reward component over the completions that have a score for it."""

    sum: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The numbers of one group. `version_sum` is summed over `sampled_tokens`, those with mask 1.

    `task_rewards` are those of the scored completions: the weighted sum of the components, before shaping.
    """

    prompt_id: str
    completions: int
    task_rewards: tuple[float, ...]
    tokens: int
    sampled_tokens: int
    version_sum: int
    newest_version: int
    rewards: Mapping[str, RewardSum]

    @property
    def scored(self) -> int:
        """Completions that all rewards have a value for."""
        return len(self.task_rewards)

    @property
    def withheld(self) -> int:
        """Completions that the infrastructure failed to score."""
        return self.completions - self.scored


def summarise(group: Group, weights: Mapping[str, float]) -> Summary:
    """Sum up a group, with the weight of each reward by name; a reward without one weighs 0.

    Errors: ValueError for a completion without rewards, or a score that is not finite.
    """
    for number, completion in enumerate(group.completions):
        _check_rewards(completion, f"group {group.group_id}, completion {number}")
    return Summary(
        prompt_id=group.prompt.prompt_id,
        completions=len(group.completions),
        task_rewards=tuple(_task_reward(c, weights) for c in group.completions if not c.withheld),
        tokens=group.tokens,
        sampled_tokens=sum(sum(completion.mask) for completion in group.completions),
        version_sum=sum(_version_sum(completion) for completion in group.completions),
        newest_version=group.newest_version,
        rewards=_reward_sums(group),
    )


def _check_rewards(completion: Completion, where: str) -> None:
    if not completion.rewards:
        raise ValueError(f"{where} has no rewards; have the verifier score it before inserting the group")
    for reward in completion.rewards:
        if reward.outcome is not Outcome.ERROR and not math.isfinite(reward.value):
            raise ValueError(
                f"{where}: reward {reward.name} is {reward.value}; a failed score is an error, not a number"
            )


def _task_reward(completion: Completion, weights: Mapping[str, float]) -> float:
    return sum(weights.get(reward.name, 0.0) * reward.value for reward in completion.rewards)


def _version_sum(completion: Completion) -> int:
    return sum(span.version * sum(completion.mask[span.start : span.end]) for span in completion.spans)


def _reward_sums(group: Group) -> dict[str, RewardSum]:
    values: dict[str, list[float]] = {}
    for completion in group.completions:
        for reward in completion.rewards:
            if reward.outcome is not Outcome.ERROR:
                values.setdefault(reward.name, []).append(reward.value)
    return {name: RewardSum(sum=math.fsum(scores), count=len(scores)) for name, scores in values.items()}
