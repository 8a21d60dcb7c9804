"""Estimators with statistics of the whole batch; formulas in spec/batch_advantage.py.

Rewards that are centred by group sum to 0 over each group, and so over the batch. The mean of the batch is
therefore 0 and is not subtracted, so groups of equal rewards stay at exactly 0.
Suffixes: _B completions, _N reward components, _X completions × components.
"""

import torch
from torch import Tensor

from slipstream.algorithms.advantages.centre import EQUAL_REWARDS, centre
from slipstream.algorithms.advantages.completions import Completions, component_sum
from slipstream.algorithms.spec import BatchScaled, Gdpo, ReinforcePp


def batch_scaled(spec: BatchScaled, completions: Completions) -> Tensor:
    """(R - mean of the group or batch) / (std over the batch + epsilon).

    In the statistics count completions that can be compared in their group.
    """
    centred = completions.centred()
    count_B = centred.compared_N.to(torch.float64)
    raw_B = deviation(completions.total_B, count_B)
    deviation_B = centred.value_N if spec.center == "group" else raw_B
    std = deviation_std(deviation_B if spec.std_of == "centred" else raw_B, count_B)
    return deviation_B / (std + spec.epsilon)


def reinforce_pp(spec: ReinforcePp, completions: Completions) -> Tensor:
    """(a - mean of a) / (std of a + epsilon) with a = R - group mean, or R; over completions or their tokens.

    By tokens a completion without any has advantage 0.
    """
    if spec.group_mean:
        centred = completions.centred()
        value_B, count_B = centred.value_N, centred.compared_N.to(torch.float64)
    else:
        value_B, count_B = completions.total_B, (~completions.total_B.isnan()).to(torch.float64)
    if spec.weighting == "token":
        count_B = count_B * completions.lengths_for("reinforce_pp with weighting token")
    mean_is_zero = spec.group_mean and spec.weighting == "sample"
    deviation_B = value_B if mean_is_zero else deviation(value_B, count_B)
    return deviation_B / (deviation_std(deviation_B, count_B) + spec.epsilon)


def gdpo(spec: Gdpo, completions: Completions) -> Tensor:
    """S = sum of w (r - group mean) / (group std + epsilon) over components; S / (std of S + epsilon).

    In the batch statistics count completions with a component that can be compared in its group. A component
    that does not apply to a completion is treated as unknown: it has no part in S.
    """
    components = completions.reward_BN.shape[1]
    group_BN = completions.group_B.unsqueeze(1) * components + torch.arange(components)
    reward_BN = torch.where(completions.applies_BN, completions.reward_BN, torch.nan)
    centred_X = centre(reward_BN.flatten(), group_BN.flatten(), completions.groups * components)
    scaled_X = centred_X.value_N / (centred_X.std_N(spec.ddof) + spec.epsilon)
    sum_B = component_sum(scaled_X.view(-1, components) * completions.weight_N)
    if not spec.final_batch_norm:
        return sum_B
    count_B = centred_X.compared_N.view(-1, components).any(dim=1).to(torch.float64)
    return sum_B / (deviation_std(sum_B, count_B) + spec.epsilon)


def deviation(value_B: Tensor, count_B: Tensor) -> Tensor:
    """Value minus the mean of the batch, each counted count_B times; exactly 0 where all are equal."""
    counts_B = count_B > 0
    value_K = value_B[counts_B]
    if not value_K.numel() or float(value_K.max() - value_K.min()) <= EQUAL_REWARDS:
        return torch.zeros_like(value_B)
    mean = (count_B[counts_B] * value_K).sum() / count_B.sum()
    return torch.where(counts_B, value_B - mean, 0.0)


def deviation_std(deviation_B: Tensor, count_B: Tensor) -> Tensor:
    """Standard deviation with ddof 1 of deviations from the mean, each counted count_B times."""
    return ((count_B * deviation_B.square()).sum() / (count_B.sum() - 1).clamp(min=1)).sqrt()
