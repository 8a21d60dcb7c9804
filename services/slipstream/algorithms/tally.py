"""The sums for the metrics of a loss, added up over the parts of a microbatch.

Suffixes: _T packed tokens. A cell is a staleness bucket and a sign of the advantage; every quantity is summed
in each cell, so that any marginal is a sum of cells.
"""

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms import objectives, ratios, staleness

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
"""Summed over the tokens that trained, where the loss has their inputs."""

AGES: Final = (*staleness.BUCKETS, "unknown")
BINS_PER_UNIT: Final = 64
BINS: Final = 2 * int(ratios.LOG_RATIO_LIMIT) * BINS_PER_UNIT + 1
"""Bin k of the histogram holds z around (k - BINS // 2) / 64: a quantile of the ratio is within 0.8 %."""

_NAMES: Final = (*VALUES, *OPTIONAL)

_LAST_BUCKET: Final = max(low for low, _ in staleness.BUCKETS.values())
"""Least age of the last bucket."""

CELLS: Final = len(AGES) * 3
"""Number of cells. One more cell, the last, takes the tokens that do not count."""


class Tally:
    """Float64 sums on one device, without gradient; `add` is called once for each part, and adds in place."""

    def __init__(self, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self._flags = zeros((CELLS + 1) << len(FLAGS))
        self._values = zeros(len(_NAMES), CELLS + 1)
        self._histogram = zeros((CELLS + 1) * BINS)
        self._largest = zeros(CELLS + 1).fill_(-math.inf)
        self._dropped_sequences = zeros()
        self._given = zeros(len(OPTIONAL))
        self._bucket_of_age = _buckets(device)

    def add(
        self,
        surrogate: objectives.Surrogate,
        *,
        advantages_T: Tensor,
        mask_T: Tensor,
        trained_T: Tensor,
        staleness_T: Tensor | None,
        correction_T: Tensor | None,
        dropped_sequences: Tensor | None,
        extra: Mapping[str, Tensor],
        everything_counts: bool,
        everything_trains: bool,
    ) -> None:
        """Add the sums of one part.

        mask_T: [T] bool, the tokens of the batch; trained_T: those of them that are not over age.
        correction_T: the product c of the corrections. extra: name of OPTIONAL → [T].
        everything_counts, everything_trains: every element of mask_T, trained_T is true.
        """
        z_T, cell_T = surrogate.log_ratio_T.double(), self._cell(advantages_T, staleness_T)
        ones_T, all_T = (
            torch.ones_like(z_T),
            cell_T if everything_counts else torch.where(mask_T, cell_T, CELLS),
        )
        code_T = (all_T << len(FLAGS)) + _flags(surrogate, trained_T, correction_T, advantages_T)
        self._flags.index_add_(0, code_T, ones_T)
        cell_T = cell_T if everything_trains else torch.where(trained_T, cell_T, CELLS)
        for name, value_T in (_values(surrogate, z_T, correction_T) | dict(extra)).items():
            self._values[_NAMES.index(name)].index_add_(0, cell_T, value_T.double())
        bin_T = (z_T.nan_to_num() * BINS_PER_UNIT).round().long() + BINS // 2
        self._histogram.index_add_(0, cell_T * BINS + bin_T, ones_T)
        self._largest.scatter_reduce_(0, cell_T, z_T.exp(), "amax")
        if dropped_sequences is not None:
            self._dropped_sequences += dropped_sequences
        for name in extra:
            self._given[OPTIONAL.index(name)].fill_(1)

    def sums(self) -> dict[str, Tensor]:
        """Return copies of the sums so far by name; see `merge` and `finalize`."""
        shape = (len(AGES), 3)
        return {
            "tokens": self._flags.reshape(CELLS + 1, -1)[:CELLS].sum(1).reshape(shape),
            "flags": _flag_counts(self._flags),
            "values": self._values[:, :CELLS].clone().reshape(len(_NAMES), *shape),
            "histogram": self._histogram[: CELLS * BINS].clone().reshape(*shape, BINS),
            "max_ratio": self._largest[:CELLS].clone().reshape(shape),
            "given": self._given.clone(),
            "dropped_sequences": self._dropped_sequences.clone(),
        }

    def _cell(self, advantages_T: Tensor, staleness_T: Tensor | None) -> Tensor:
        sign_T = advantages_T.nan_to_num().sign().long() + 1
        if staleness_T is None:
            return (len(AGES) - 1) * 3 + sign_T
        age_T = staleness_T.clamp(0, _LAST_BUCKET).long()  # outside the mask it may be any number
        return self._bucket_of_age[age_T] * 3 + sign_T


def _buckets(device: torch.device) -> Tensor:
    """Return the bucket of each age up to the least age of the last bucket."""
    age = torch.arange(_LAST_BUCKET + 1, device=device)
    after = [age > high for _, high in staleness.BUCKETS.values() if high is not None]
    return torch.stack(after).sum(0)


def _flags(
    surrogate: objectives.Surrogate, trained_T: Tensor, correction_T: Tensor | None, advantages_T: Tensor
) -> Tensor:
    """Return the FLAGS of each token as the bits of one number."""
    without_gradient_T = (surrogate.weight_T == 0) | (advantages_T == 0)
    dropped_T = None if correction_T is None else correction_T == 0
    flags = (
        surrogate.below_T,
        surrogate.above_T,
        surrogate.clipped_low_T,
        surrogate.clipped_high_T,
        without_gradient_T if dropped_T is None else without_gradient_T | dropped_T,
        dropped_T,
        surrogate.damped_T,
    )
    code_T = torch.ones_like(trained_T, dtype=torch.uint8)
    for bit, flag_T in enumerate(flags, start=1):
        if flag_T is not None:
            code_T.add_(flag_T, alpha=1 << bit)
    return (code_T * trained_T).long()


def _values(surrogate: objectives.Surrogate, z_T: Tensor, correction_T: Tensor | None) -> dict[str, Tensor]:
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
    """Count the tokens with each flag in each cell: [flags, ages, signs]."""
    codes, bit = (torch.arange(n, device=flags.device) for n in (1 << len(FLAGS), len(FLAGS)))
    bits = ((codes >> bit[:, None]) & 1).double()
    counts = bits @ flags.reshape(CELLS + 1, -1)[:CELLS].T
    return counts.reshape(len(FLAGS), len(AGES), 3)
