"""Rewards minus the mean of their group, which most estimators use.

Suffixes: _N rewards, _S groups.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms.segments import segment_range, segment_sum

EQUAL_REWARDS: Final = 1e-8
"""Rewards whose range is at most this are equal: smaller differences are rounding (0.1 × 3 is not 0.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Centred:
    """Rewards of one batch, centred by group; they sum to 0 over each group."""

    value_N: Tensor
    """Reward minus group mean; exactly 0 where withheld, alone or in a group of equals."""
    compared_N: Tensor
    """Whether the reward is known and its group has another known one, bool."""
    group_N: Tensor
    scored_S: Tensor
    """Number of known rewards of each group."""
    mean_S: Tensor
    """Mean of the known rewards of each group; 0 in a group without any."""
    contrast_S: Tensor
    """Whether the known rewards of each group differ, bool."""

    def std_N(self, ddof: int) -> Tensor:
        """Standard deviation of each reward's group; 0 where there is nothing to compare."""
        square_S = segment_sum(self.value_N.square(), self.group_N, self.scored_S.shape[0])
        return (square_S / (self.scored_S - ddof).clamp(min=1)).sqrt()[self.group_N]

    def leave_one_out_N(self) -> Tensor:
        """Reward minus the mean of the others: R - (G mean - R) / (G - 1) = (R - mean) G / (G - 1)."""
        factor_S = self.scored_S / (self.scored_S - 1).clamp(min=1)
        return self.value_N * factor_S[self.group_N]


def centre(reward_N: Tensor, group_N: Tensor, groups: int) -> Centred:
    """Subtract from each known reward the mean of the known ones of its group.

    reward_N: float64, NaN where withheld. group_N: indices 0..groups - 1.
    """
    known_N = ~reward_N.isnan()
    known_K, group_K = reward_N[known_N], group_N[known_N]
    scored_S = segment_sum(known_N.to(torch.float64), group_N, groups)
    mean_S = segment_sum(known_K, group_K, groups) / scored_S.clamp(min=1)
    contrast_S = segment_range(known_K, group_K, groups) > EQUAL_REWARDS
    return Centred(
        value_N=torch.where(known_N & contrast_S[group_N], reward_N - mean_S[group_N], 0.0),
        compared_N=known_N & (scored_S > 1)[group_N],
        group_N=group_N,
        scored_S=scored_S,
        mean_S=mean_S,
        contrast_S=contrast_S,
    )
