"""What the ledger needs to know of a group, computed from its bytes alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.v1 import types_pb2 as pb
from slipstream.v1.packed_pb2 import PackedCompletion, PackedGroup

TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSum:
    """One reward component over the completions that have a score for it."""

    sum: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The numbers of one group. `version_sum` is summed over `sampled_tokens`, those with mask 1.

    `task_rewards` are those of the scored completions: the weighted sum of the components, before shaping.
    `fault` says what is wrong with a malformed group; of such a one nothing else is known but the prompt.
    """

    prompt_id: str
    completions: int = 0
    task_rewards: tuple[float, ...] = ()
    tokens: int = 0
    sampled_tokens: int = 0
    version_sum: int = 0
    newest_version: int = 0
    rewards: Mapping[str, RewardSum] = field(default_factory=dict)
    fault: str = ""

    @property
    def scored(self) -> int:
        """Completions that all rewards have a value for."""
        return len(self.task_rewards)

    @property
    def withheld(self) -> int:
        """Completions that the infrastructure failed to score."""
        return self.completions - self.scored


def summarise(group: PackedGroup, weights: Mapping[str, float]) -> Summary:
    """Sum up a group that `check_group` has checked, with the weight of each reward by name; a reward without
    one weighs 0."""
    completions = list(group.completions)
    return Summary(
        prompt_id=group.prompt.prompt_id,
        completions=len(completions),
        task_rewards=tuple(task_reward(c, weights) for c in completions if not withheld(c)),
        tokens=sum(len(c.token_ids) // TOKEN_BYTES for c in completions),
        sampled_tokens=sum(c.mask.count(b"\x01") for c in completions),
        version_sum=sum(_version_sum(c) for c in completions),
        newest_version=max((span.version for c in completions for span in c.spans), default=0),
        rewards=_reward_sums(completions),
    )


def withheld(completion: PackedCompletion) -> bool:
    """Whether the infrastructure failed to give one of its rewards."""
    return any(reward.outcome == pb.OUTCOME_ERROR for reward in completion.rewards)


def task_reward(completion: PackedCompletion, weights: Mapping[str, float]) -> float:
    """The weighted sum of its rewards, before any shaping."""
    return sum(weights.get(reward.name, 0.0) * reward.value for reward in completion.rewards)


def _version_sum(completion: PackedCompletion) -> int:
    mask = completion.mask
    return sum(span.version * mask.count(b"\x01", span.start, span.end) for span in completion.spans)


def _reward_sums(completions: list[PackedCompletion]) -> dict[str, RewardSum]:
    values: dict[str, list[float]] = {}
    for completion in completions:
        for reward in completion.rewards:
            if reward.outcome != pb.OUTCOME_ERROR:
                values.setdefault(reward.name, []).append(reward.value)
    return {name: RewardSum(sum=math.fsum(scores), count=len(scores)) for name, scores in values.items()}
