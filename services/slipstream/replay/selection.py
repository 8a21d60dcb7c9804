"""What an evaluation makes of one prompt: its best completion, and the answer that most completions give."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.replay.summary import task_reward, withheld
from slipstream.v1 import types_pb2 as pb
from slipstream.v1.packed_pb2 import PackedCompletion, PackedGroup

RIGHT = 1.0
"""Reward from which on an answer is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One reward component of what was chosen; None where no completion has a score."""

    best: float | None
    """Of the completion with the largest weighted sum of rewards; of several the mean."""
    majority: float | None
    """Of the most frequent answer; of several the mean."""


def choose(group: PackedGroup, weights: Mapping[str, float]) -> dict[str, Selection]:
    """What is chosen of a group that `check_group` has checked, by reward; `weights` as in `summarise`."""
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
    """The mean value of the most frequent answers; that of all completions where none has a valid answer."""
    votes: dict[object, list[float]] = {}
    for completion, reward in parts:
        if reward.outcome == pb.OUTCOME_SCORE:
            votes.setdefault(_answer(completion, reward), []).append(reward.value)
    if not votes:
        return _mean([reward.value for _, reward in parts])
    most = max(map(len, votes.values()))
    return _mean([math.fsum(values) / most for values in votes.values() if len(values) == most])


def _answer(completion: PackedCompletion, reward: pb.Reward) -> object:
    """What a completion votes for. Every right answer is the same one, in whatever words; of the others it is
    the part that the reward took out, case and white space aside, or else the tokens."""
    if reward.value >= RIGHT:
        return RIGHT
    return " ".join(reward.answer.casefold().split()) or completion.token_ids


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
