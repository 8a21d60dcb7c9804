"""Sums and extremes over segments of a flat tensor, named by an integer id per element.

Suffixes: _N elements, _S segments.
"""

from torch import Tensor


def segment_sum(value_N: Tensor, id_N: Tensor, segments: int) -> Tensor:
    """Return the sum of each segment, [S]; 0 for an empty one."""
    return value_N.new_zeros(segments).index_add(0, id_N, value_N)


def segment_range(value_N: Tensor, id_N: Tensor, segments: int) -> Tensor:
    """Return the largest minus the smallest value of each segment, [S]; 0 for an empty one."""
    zero_S = value_N.new_zeros(segments)
    high_S = zero_S.scatter_reduce(0, id_N, value_N, "amax", include_self=False)
    low_S = zero_S.scatter_reduce(0, id_N, value_N, "amin", include_self=False)
    return high_S - low_S
