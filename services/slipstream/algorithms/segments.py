"""Sums and extremes over segments of a flat tensor, named by an integer id per element.

Suffixes: _N elements, _S segments.
"""

import torch
from torch import Tensor


def positions_in_segment(id_N: Tensor) -> Tensor:
    """Return which element of its segment each one is, [N] from 0, for ids that rise."""
    index_N = torch.arange(id_N.shape[0], device=id_N.device)
    return index_N - torch.searchsorted(id_N, id_N)


def segment_sum(value_N: Tensor, id_N: Tensor, segments: int) -> Tensor:
    """Return the sum of each segment, [S]; 0 for an empty one."""
    return value_N.new_zeros(segments).index_add(0, id_N, value_N)


def segment_range(value_N: Tensor, id_N: Tensor, segments: int) -> Tensor:
    """Return the largest minus the smallest value of each segment, [S]; 0 for an empty one."""
    zero_S = value_N.new_zeros(segments)
    high_S = zero_S.scatter_reduce(0, id_N, value_N, "amax", include_self=False)
    low_S = zero_S.scatter_reduce(0, id_N, value_N, "amin", include_self=False)
    return high_S - low_S


def segment_mean(value_N: Tensor, id_N: Tensor, segments: int, count_S: Tensor) -> Tensor:
    """Return the sum of each segment over count_S, [S]; 0 where the count is 0."""
    return segment_sum(value_N, id_N, segments) / count_S.clamp(min=1)


def segment_discounted_sum(value_N: Tensor, id_N: Tensor, decay: float) -> Tensor:
    """Return y with y_n = value_n + decay × y_(n+1) inside each segment, [N]; segments are contiguous.

    By doubling: after pass k an element holds the sum over its next 2^k elements, so a pass for each doubling
    up to the longest segment is enough, and no element of another segment is ever added, not even times 0.
    """
    total_N, step, factor = value_N, 1, decay
    while step < id_N.shape[0]:
        together_M = id_N[:-step] == id_N[step:]
        if not bool(together_M.any()):
            break
        ahead_M = torch.where(together_M, total_N[step:], 0.0)
        total_N = torch.cat((total_N[:-step] + factor * ahead_M, total_N[-step:]))
        step, factor = 2 * step, factor * factor
    return total_N
