"""The sums that the metrics of a loss are made of, added up over the parts of a microbatch.

Suffixes: _T packed tokens. A cell is a staleness bucket and a sign of the advantage; every quantity is summed
in each cell, so that any marginal is a sum of cells.
"""

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms.objectives import Surrogate
from slipstream.algorithms.ratios import LOG_RATIO_LIMIT
from slipstream.algorithms.staleness import BUCKETS

FLAGS: Final = (
    "trained",
    "out_of_band_low",
    "out_of_band_high",
    "clipped_low",
    "clipped_high",
    "zero_gradient",
    "dropped",
    "damped",
)
"""Counted at each token of the mask; all but the first only where it trained (was not over age)."""

VALUES: Final = (
    "ratio",
    "ratio_sq",
    "log_ratio",
    "log_ratio_sq",
    "weight",
    "correction",
    "correction_sq",
)
"""Summed over the tokens that trained."""

OPTIONAL: Final = ("kl_rollout", "kl_ref", "kl_teacher", "entropy", "router_shift")
"""Summed likewise, where the loss was given what they need."""

AGES: Final = (*BUCKETS, "unknown")
BINS_PER_UNIT: Final = 64
BINS: Final = 2 * int(LOG_RATIO_LIMIT) * BINS_PER_UNIT + 1
"""Bin k of the histogram holds z around (k - BINS // 2) / 64: a quantile of the ratio is within 0.8 %."""

_NAMES: Final = (*VALUES, *OPTIONAL)

CELLS: Final = len(AGES) * 3
"""One more, the last, takes the tokens that do not count."""


class Tally:
    """Float64 sums on one device, without gradient; `add` is called once for each part."""

    def __init__(self, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self._flags = zeros((CELLS + 1) << len(FLAGS))
        self._values = zeros(len(_NAMES), CELLS + 1)
        self._histogram = zeros((CELLS + 1) * BINS)
        self._largest = zeros(CELLS + 1).fill_(-math.inf)
        self._dropped_sequences = zeros()
        self._given = zeros(len(OPTIONAL))

    def add(
        self,
        surrogate: Surrogate,
        *,
        advantages_T: Tensor,
        mask_T: Tensor,
        trained_T: Tensor,
        staleness_T: Tensor | None,
        correction_T: Tensor | None,
        dropped_sequences: Tensor,
        extra: Mapping[str, Tensor],
    ) -> None:
        """Add a part.

        mask_T: [T] bool, the tokens of the batch; trained_T: those of them that are not over age.
        correction_T: the product c of the corrections. extra: [T] those of OPTIONAL that are known, by name.
        """
        z_T, cell_T = surrogate.log_ratio_T.double(), _cell(advantages_T, staleness_T)
        ones_T, all_T = torch.ones_like(z_T), torch.where(mask_T, cell_T, CELLS)
        code_T = (all_T << len(FLAGS)) + _flags(surrogate, trained_T, correction_T, advantages_T)
        self._flags.index_add_(0, code_T, ones_T)
        cell_T = torch.where(trained_T, cell_T, CELLS)
        for name, value_T in (_values(surrogate, z_T, correction_T) | dict(extra)).items():
            self._values[_NAMES.index(name)].index_add_(0, cell_T, value_T.double())
        bin_T = (z_T.nan_to_num() * BINS_PER_UNIT).round().long() + BINS // 2
        self._histogram.index_add_(0, cell_T * BINS + bin_T, ones_T)
        self._largest.scatter_reduce_(0, cell_T, z_T.exp(), "amax")
        self._dropped_sequences += dropped_sequences
        self._given += self._given.new_tensor([name in extra for name in OPTIONAL])

    def sums(self) -> dict[str, Tensor]:
        """The sums by name; see `merge` and `finalize`."""
        shape = (len(AGES), 3)
        return {
            "tokens": self._flags.reshape(CELLS + 1, -1)[:CELLS].sum(1).reshape(shape),
            "flags": _flag_counts(self._flags),
            "values": self._values[:, :CELLS].reshape(len(_NAMES), *shape),
            "histogram": self._histogram[: CELLS * BINS].reshape(*shape, BINS),
            "max_ratio": self._largest[:CELLS].reshape(shape),
            "given": self._given.clamp(max=1),
            "dropped_sequences": self._dropped_sequences,
        }


def _cell(advantages_T: Tensor, staleness_T: Tensor | None) -> Tensor:
    sign_T = advantages_T.nan_to_num().sign().long() + 1
    if staleness_T is None:
        return (len(AGES) - 1) * 3 + sign_T
    ends = torch.tensor([high for _, high in BUCKETS.values() if high is not None], device=staleness_T.device)
    return torch.bucketize(staleness_T, ends) * 3 + sign_T


def _flags(
    surrogate: Surrogate, trained_T: Tensor, correction_T: Tensor | None, advantages_T: Tensor
) -> Tensor:
    """The FLAGS of each token as the bits of one number."""
    nowhere_T = torch.zeros_like(trained_T)
    dropped_T = nowhere_T if correction_T is None else correction_T == 0
    flags = (
        trained_T,
        surrogate.below_T,
        surrogate.above_T,
        surrogate.clipped_low_T,
        surrogate.clipped_high_T,
        (surrogate.weight_T == 0) | dropped_T | (advantages_T == 0),
        dropped_T,
        nowhere_T if surrogate.damped_T is None else surrogate.damped_T,
    )
    code_T = trained_T.to(torch.uint8)
    for bit, flag_T in enumerate(flags[1:], start=1):
        code_T += (flag_T & trained_T).to(torch.uint8) << bit
    return code_T.long()


def _values(surrogate: Surrogate, z_T: Tensor, correction_T: Tensor | None) -> dict[str, Tensor]:
    r_T, weight_T = z_T.exp(), surrogate.weight_T.double()
    c_T = torch.ones_like(z_T) if correction_T is None else correction_T.double()
    return {
        "ratio": r_T,
        "ratio_sq": r_T.square(),
        "log_ratio": z_T,
        "log_ratio_sq": z_T.square(),
        "weight": c_T * weight_T,
        "correction": c_T,
        "correction_sq": c_T.square(),
    }


def _flag_counts(flags: Tensor) -> Tensor:
    """How many tokens of each cell have each of FLAGS: [flags, ages, signs]."""
    codes = torch.arange(1 << len(FLAGS), device=flags.device)
    bits = torch.stack([(codes >> bit) & 1 for bit in range(len(FLAGS))]).double()
    counts = bits @ flags.reshape(CELLS + 1, -1)[:CELLS].T
    return counts.reshape(len(FLAGS), len(AGES), 3)
