"""Best-of-n and majority vote of one prompt in an evaluation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.replay.summary import task_reward, withheld
from slipstream.rpc.group_checks import segments
from slipstream.v1 import types_pb2 as pb
from slipstream.v1.packed_pb2 import PackedCompletion, PackedGroup

CORRECT = 1.0
"""Least reward of a correct answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The value of one reward for the completion that best-of-n selects, and for the answer of the majority.

    None where no completion has a score.
    """

    best: float | None
    """The value for the completion with the largest weighted sum of rewards; the mean if several tie."""
    majority: float | None
    """The value for the most frequent answer; the mean if several tie."""


def select(group: PackedGroup, weights: Mapping[str, float]) -> dict[str, Selection]:
    """Return reward → selection, for a group that has passed `check_group`.

    `weights` are as in `summarise`.
    """
    completions = list(group.completions)
    totals = [math.nan if withheld(c) else task_reward(c, weights) for c in completions]
    most = max((total for total in totals if not math.isnan(total)), default=math.nan)
    scored: dict[str, list[tuple[int, PackedCompletion, pb.Reward]]] = {}
    for index, completion in enumerate(completions):
        for reward in completion.rewards:
            if reward.outcome != pb.OUTCOME_ERROR:
                scored.setdefault(reward.name, []).append((index, completion, reward))
    return {
        name: Selection(
            best=_mean([reward.value for index, _, reward in parts if totals[index] == most]),
            majority=_majority([(completion, reward) for _, completion, reward in parts]),
        )
        for name, parts in scored.items()
    }


def _majority(parts: Sequence[tuple[PackedCompletion, pb.Reward]]) -> float | None:
    """Return the mean value of the most frequent answers, or of all completions if no answer is valid."""
    votes: dict[object, list[float]] = {}
    for completion, reward in parts:
        if reward.outcome == pb.OUTCOME_SCORE:
            votes.setdefault(_answer(completion, reward), []).append(reward.value)
    if not votes:
        return _mean([reward.value for _, reward in parts])
    most = max(map(len, votes.values()))
    return _mean([math.fsum(values) / most for values in votes.values() if len(values) == most])


def _answer(completion: PackedCompletion, reward: pb.Reward) -> object:
    """Return the key by which answers are counted as equal.

    All correct answers share one key. The key of another answer is the text that the reward extracted,
    without case and white space, or the token ids of all segments if the reward extracted nothing.
    """
    if reward.value >= CORRECT:
        return CORRECT
    return " ".join(reward.answer.casefold().split()) or tuple(
        segment.token_ids for segment in segments(completion)
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
