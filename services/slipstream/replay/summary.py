"""The numbers of a group that the ledger counts, computed from its bytes alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.rpc.group_checks import segments
from slipstream.v1 import types_pb2 as pb
from slipstream.v1.packed_pb2 import PackedCompletion, PackedGroup, PackedSegment

TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSum:
    """Sum and number of one reward component over the completions that have a score for it."""

    sum: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The numbers of one group.

    `tokens`: those of all segments, without prompts. `sampled_tokens`: tokens with mask 1. `version_sum`: sum
    of their policy versions. `task_rewards`: for each scored completion the weighted sum of its reward
    components, before shaping. `fault`: what is wrong with a malformed group, of which only the prompt is
    known. `source`: of the prompt in a mixture, or empty.
    """

    prompt_id: str
    source: str = ""
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
        """Number of completions for which every reward has a value."""
        return len(self.task_rewards)

    @property
    def withheld(self) -> int:
        """Number of completions that the infrastructure failed to score."""
        return self.completions - self.scored


def summarise(group: PackedGroup, weights: Mapping[str, float]) -> Summary:
    """Return the summary of a group that has passed `check_group`.

    `weights`: reward → weight; a reward that is missing there weighs 0.
    """
    completions = list(group.completions)
    parts = [segment for completion in completions for segment in segments(completion)]
    return Summary(
        prompt_id=group.prompt.prompt_id,
        source=group.prompt.source,
        completions=len(completions),
        task_rewards=tuple(task_reward(c, weights) for c in completions if not withheld(c)),
        tokens=sum(len(part.token_ids) // TOKEN_BYTES for part in parts),
        sampled_tokens=sum(part.mask.count(b"\x01") for part in parts),
        version_sum=sum(_version_sum(part) for part in parts),
        newest_version=max((span.version for part in parts for span in part.spans), default=0),
        rewards=_reward_sums(completions),
    )


def withheld(completion: PackedCompletion) -> bool:
    """Return whether the infrastructure failed to compute one of the rewards."""
    return any(reward.outcome == pb.OUTCOME_ERROR for reward in completion.rewards)


def task_reward(completion: PackedCompletion, weights: Mapping[str, float]) -> float:
    """Return the weighted sum of the rewards, before any shaping."""
    return sum(weights.get(reward.name, 0.0) * reward.value for reward in completion.rewards)


def _version_sum(segment: PackedCompletion | PackedSegment) -> int:
    mask = segment.mask
    return sum(span.version * mask.count(b"\x01", span.start, span.end) for span in segment.spans)


def _reward_sums(completions: list[PackedCompletion]) -> dict[str, RewardSum]:
    values: dict[str, list[float]] = {}
    for completion in completions:
        for reward in completion.rewards:
            if reward.outcome != pb.OUTCOME_ERROR:
                values.setdefault(reward.name, []).append(reward.value)
    return {name: RewardSum(sum=math.fsum(scores), count=len(scores)) for name, scores in values.items()}
