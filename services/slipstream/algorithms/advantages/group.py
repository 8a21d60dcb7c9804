"""Estimators that compare a completion with its group only; formulas in spec/group_advantage.py.

Suffixes: _B completions, _K completions that have something to compare with, _S groups.
"""

import torch
from torch import Tensor

from slipstream.algorithms.advantages.centre import EQUAL_REWARDS, Centred
from slipstream.algorithms.advantages.completions import Completions
from slipstream.algorithms.segments import segment_sum
from slipstream.algorithms.spec import DrGrpo, Gopo, Grpo, MaxRl, Opo, Rloo, group_advantage


def grpo(spec: Grpo, completions: Completions) -> Tensor:
    """(R - mean) / (std + epsilon)."""
    centred = completions.centred()
    return centred.value_N / (centred.std_N(spec.ddof) + spec.epsilon)


def dr_grpo(spec: DrGrpo, completions: Completions) -> Tensor:
    """R - mean."""
    return completions.centred().value_N


def rloo(spec: Rloo, completions: Completions) -> Tensor:
    """R - mean of the others, over (std + epsilon) of the group where it is scaled."""
    centred = completions.centred()
    if spec.scale == "none":
        return centred.leave_one_out_N()
    return centred.leave_one_out_N() / (centred.std_N(1) + group_advantage.RLOO_EPSILON)


def maxrl(spec: MaxRl, completions: Completions) -> Tensor:
    """(R - mean) / mean; 0 where the mean is not above EQUAL_REWARDS, or it would be the divisor."""
    centred = completions.centred()
    mean_B = centred.mean_S[centred.group_N]
    positive_B = mean_B > EQUAL_REWARDS
    return torch.where(positive_B, centred.value_N / mean_B.where(positive_B, 1.0), 0.0)


def opo(spec: Opo, completions: Completions) -> Tensor:
    """R - sum(L R) / sum(L); 0 in a group without tokens.

    With c = R - mean this is c - sum(L c) / sum(L), which is exactly 0 where all c are.
    """
    centred = completions.centred()
    length_B = torch.where(centred.compared_N, completions.lengths_for("opo"), 0.0)
    tokens_S = segment_sum(length_B, centred.group_N, completions.groups)
    weighted_S = segment_sum(length_B * centred.value_N, centred.group_N, completions.groups)
    baseline_S = weighted_S / tokens_S.where(tokens_S > 0, 1.0)
    counts_B = centred.compared_N & (tokens_S > 0)[centred.group_N]
    return torch.where(counts_B, centred.value_N - baseline_S[centred.group_N], 0.0)


def gopo(spec: Gopo, completions: Completions) -> Tensor:
    """high - (rank - 1) 2 high / (G - 1) = high (G + 1 - 2 rank) / (G - 1), in which the middle is exactly 0.

    Neighbours in rank that differ by no more than EQUAL_REWARDS are ties. By quantile they share the mean of
    their advantages; where ranks are evenly spaced, that is the advantage of their mean rank.
    """
    centred = completions.centred()
    reward_B = completions.total_B
    order_K = _best_first(reward_B, centred)
    group_K = centred.group_N[order_K]
    rank_K = _rank_in_group(group_K, completions.groups)
    size_K = centred.scored_S[group_K]
    if spec.mapping == "quantile":
        advantage_K = spec.high * _normal_score(rank_K, size_K)
        if spec.ties == "average":
            mean_K = _average_over_ties(advantage_K, reward_B[order_K], group_K)
            advantage_K = torch.where(centred.contrast_S[group_K], mean_K, 0.0)
    else:
        if spec.ties == "average":
            rank_K = _average_over_ties(rank_K, reward_B[order_K], group_K)
        advantage_K = spec.high * (size_K + 1 - 2 * rank_K) / (size_K - 1)
    return torch.zeros_like(reward_B).index_copy(0, order_K, advantage_K)


def _normal_score(rank_K: Tensor, size_K: Tensor) -> Tensor:
    """q(rank) / q(1), q(rank) = Phi^-1((G + 5/8 - rank) / (G + 1/4)): in it 2 p - 1 is odd in the rank."""
    return torch.erfinv((size_K + 1 - 2 * rank_K) / (size_K + 0.25)) / torch.erfinv(
        (size_K - 1) / (size_K + 0.25)
    )


def _best_first(reward_B: Tensor, centred: Centred) -> Tensor:
    """Indices of the completions to rank, by group, best first, equals in the order they came in."""
    index_K = torch.nonzero(centred.compared_N).squeeze(1)
    index_K = index_K[torch.argsort(reward_B[index_K], descending=True, stable=True)]
    return index_K[torch.argsort(centred.group_N[index_K], stable=True)]


def _rank_in_group(group_K: Tensor, groups: int) -> Tensor:
    size_S = torch.bincount(group_K, minlength=groups)
    first_S = size_S.cumsum(0) - size_S
    position_K = torch.arange(group_K.shape[0])
    return (position_K - first_S[group_K] + 1).to(torch.float64)


def _average_over_ties(value_K: Tensor, reward_K: Tensor, group_K: Tensor) -> Tensor:
    """The mean of a value over each run of equal rewards of a group; completions come best first."""
    drop_K = (torch.diff(reward_K) < -EQUAL_REWARDS) | (torch.diff(group_K) != 0)
    tie_K = torch.cat((group_K.new_zeros(min(1, group_K.shape[0])), drop_K.cumsum(0)))
    ties = int(tie_K[-1]) + 1 if tie_K.numel() else 0
    size_S = torch.bincount(tie_K, minlength=ties)
    return (segment_sum(value_K, tie_K, ties) / size_S)[tie_K]
