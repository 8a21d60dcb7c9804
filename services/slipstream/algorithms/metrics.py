"""What a policy loss says about itself, as sums that add up exactly over microbatches and ranks.

Suffixes: _T packed tokens, _C tokens of a chunk. A cell is a staleness bucket and a sign of the advantage;
every quantity is summed in each cell, so that any marginal is a sum of cells.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms.objectives import Surrogate
from slipstream.algorithms.ratios import LOG_RATIO_LIMIT
from slipstream.algorithms.staleness import BUCKETS

REDUCED_BY_MAX: Final = frozenset({"max_ratio", "given"})
"""The sums that are reduced by their maximum; every other one is added."""

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

OPTIONAL: Final = ("kl_rollout", "kl_ref", "entropy")
"""Summed likewise, where the loss was given what they need."""

AGES: Final = (*BUCKETS, "unknown")
SIGNS: Final = {"": slice(None), "_positive": slice(2, 3), "_negative": slice(0, 1)}
"""Suffix of a metric, and which of the cells A < 0, A = 0, A > 0 it is over."""

BINS_PER_UNIT: Final = 64
BINS: Final = 2 * int(LOG_RATIO_LIMIT) * BINS_PER_UNIT + 1
"""Bin k of the histogram holds z around (k - BINS // 2) / 64: a quantile of the ratio is within 0.8 %."""

CHUNK: Final = 1 << 16
"""Tokens summed at one time, so that the sums take no memory worth mentioning."""


def loss_sums(
    surrogate: Surrogate,
    *,
    advantages_T: Tensor,
    mask_T: Tensor,
    trained_T: Tensor,
    staleness_T: Tensor | None,
    correction_T: Tensor | None,
    extra: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Sum up one microbatch, float64 tensors without gradient.

    mask_T: [T] bool, the tokens of the batch; trained_T: those of them that are not over age. correction_T:
    the product c of the corrections. extra: [T] those of OPTIONAL that are known, by name.
    """
    cells = len(AGES) * 3
    flags = torch.zeros((cells + 1) << len(FLAGS), dtype=torch.float64, device=mask_T.device)
    names = (*VALUES, *OPTIONAL)
    values = torch.zeros(len(names), cells + 1, dtype=torch.float64, device=mask_T.device)
    histogram = torch.zeros((cells + 1) * BINS, dtype=torch.float64, device=mask_T.device)
    largest = torch.full((cells + 1,), -math.inf, dtype=torch.float64, device=mask_T.device)
    for start in range(0, mask_T.shape[0], CHUNK):
        part = slice(start, start + CHUNK)
        trained_C, z_C = trained_T[part], surrogate.log_ratio_T[part].double()
        cell_C = _cell(advantages_T[part], None if staleness_T is None else staleness_T[part])
        all_C = torch.where(mask_T[part], cell_C, cells)
        cell_C = torch.where(trained_C, cell_C, cells)
        of_token = _values(surrogate, part, z_C, correction_T, extra)
        code_C = (all_C << len(FLAGS)) + _flags(surrogate, part, trained_C, correction_T, advantages_T)
        flags.index_add_(0, code_C, torch.ones_like(z_C))
        for name, value_C in of_token.items():
            values[names.index(name)].index_add_(0, cell_C, torch.where(trained_C, value_C.double(), 0.0))
        bin_C = (z_C.nan_to_num() * BINS_PER_UNIT).round().long() + BINS // 2
        histogram.index_add_(0, cell_C * BINS + bin_C, torch.ones_like(z_C))
        largest.scatter_reduce_(0, cell_C, z_C.exp(), "amax")
    shape = (len(AGES), 3)
    return {
        "tokens": _tokens(flags, cells),
        "flags": _flag_counts(flags, cells),
        "values": values[:, :cells].reshape(len(names), *shape),
        "given": torch.tensor([float(name in extra) for name in OPTIONAL], device=mask_T.device).double(),
        "histogram": histogram[: cells * BINS].reshape(*shape, BINS),
        "max_ratio": largest[:cells].reshape(shape),
    }


def merge(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Reduce the sums of several microbatches to those of their union."""
    whole: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = _reduce(name, whole[name], value) if name in whole else value
    return whole


def finalize(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Turn sums into the metrics of a dashboard; a share of no tokens is 0.

    Each also comes with the suffixes _positive and _negative, over the tokens with A > 0 and with A < 0.
    tokens, trained_tokens: of the batch, and those of them that were not over age; over_age_fraction.
    clip_fraction_low, clip_fraction_high: share of trained tokens on which that end of the band took effect.
    out_of_band_fraction_low, out_of_band_fraction_high: share whose ratio is outside, whatever A's sign.
    zero_gradient_fraction: share of the trained tokens whose g is 0, by clipping, masks or corrections.
    dropped_fraction: share that a correction or a selection dropped. damped_fraction: see Surrogate.
    mean_ratio, p99_ratio, max_ratio, mean_log_ratio, mean_log_ratio_sq: of the ratio that is bounded.
    mean_effective_weight: mean of c g / A. mean_correction: mean of c.
    ess, ess_correction: (sum x)^2 / (n sum x^2) for x = r and x = c, the share of tokens left effective.
    kl_rollout (KL(mu || pi)), kl_ref (KL(pi || ref)), entropy: nats per token, where they are known.
    dropped_sequences: sequences all of whose tokens a correction dropped.
    """
    host = {name: value.detach().cpu() for name, value in sums.items()}
    metrics: dict[str, float] = {}
    for suffix, sign in SIGNS.items():
        metrics |= {name + suffix: value for name, value in _marginal(host, slice(None), sign).items()}
    metrics["dropped_sequences"] = float(host["dropped_sequences"])
    return metrics


def finalize_by_staleness(sums: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """The metrics of `finalize` over the tokens of each staleness bucket that has any, by its name."""
    host = {name: value.detach().cpu() for name, value in sums.items()}
    filled = [age for age, name in enumerate(AGES) if host["tokens"][age].sum() > 0]
    return {
        AGES[age]: {
            name + suffix: value
            for suffix, sign in SIGNS.items()
            for name, value in _marginal(host, slice(age, age + 1), sign).items()
        }
        for age in filled
    }


def _cell(advantages_C: Tensor, staleness_C: Tensor | None) -> Tensor:
    sign_C = advantages_C.nan_to_num().sign().long() + 1
    if staleness_C is None:
        return (len(AGES) - 1) * 3 + sign_C
    ends = torch.tensor([high for _, high in BUCKETS.values() if high is not None], device=staleness_C.device)
    return torch.bucketize(staleness_C, ends) * 3 + sign_C


def _flags(
    surrogate: Surrogate, part: slice, trained_C: Tensor, correction_T: Tensor | None, advantages_T: Tensor
) -> Tensor:
    """The FLAGS of each token as the bits of one number."""
    nowhere_C = torch.zeros_like(trained_C)
    dropped_C = nowhere_C if correction_T is None else correction_T[part] == 0
    flags = (
        trained_C,
        surrogate.below_T[part],
        surrogate.above_T[part],
        surrogate.clipped_low_T[part],
        surrogate.clipped_high_T[part],
        (surrogate.weight_T[part] == 0) | dropped_C | (advantages_T[part] == 0),
        dropped_C,
        nowhere_C if surrogate.damped_T is None else surrogate.damped_T[part],
    )
    code_C = trained_C.long()
    for bit, flag_C in enumerate(flags[1:], start=1):
        code_C = code_C + ((flag_C & trained_C).long() << bit)
    return code_C


def _values(
    surrogate: Surrogate, part: slice, z_C: Tensor, correction_T: Tensor | None, extra: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    r_C, weight_C = z_C.exp(), surrogate.weight_T[part].double()
    c_C = torch.ones_like(z_C) if correction_T is None else correction_T[part].double()
    return {
        "ratio": r_C,
        "ratio_sq": r_C.square(),
        "log_ratio": z_C,
        "log_ratio_sq": z_C.square(),
        "weight": c_C * weight_C,
        "correction": c_C,
        "correction_sq": c_C.square(),
        **{name: value_T[part] for name, value_T in extra.items()},
    }


def _tokens(flags: Tensor, cells: int) -> Tensor:
    return flags.reshape(cells + 1, -1)[:cells].sum(1).reshape(len(AGES), 3)


def _flag_counts(flags: Tensor, cells: int) -> Tensor:
    """How many tokens of each cell have each of FLAGS: [flags, ages, signs]."""
    codes = torch.arange(1 << len(FLAGS), device=flags.device)
    bits = torch.stack([(codes >> bit) & 1 for bit in range(len(FLAGS))]).double()
    counts = bits @ flags.reshape(cells + 1, -1)[:cells].T
    return counts.reshape(len(FLAGS), len(AGES), 3)


def _marginal(host: Mapping[str, Tensor], ages: slice, signs: slice) -> dict[str, float]:
    """The metrics of one selection of cells."""
    flag = dict(zip(FLAGS, host["flags"][:, ages, signs].sum((1, 2)).tolist(), strict=True))
    value = dict(zip((*VALUES, *OPTIONAL), host["values"][:, ages, signs].sum((1, 2)).tolist(), strict=True))
    tokens, trained = float(host["tokens"][ages, signs].sum()), flag["trained"]
    largest = float(host["max_ratio"][ages, signs].max())
    metrics = {
        "tokens": tokens,
        "trained_tokens": trained,
        "over_age_fraction": _share(tokens - trained, tokens),
        "max_ratio": max(largest, 0.0),
        "p99_ratio": min(_quantile(host["histogram"][ages, signs].sum((0, 1)), 0.99), max(largest, 0.0)),
        "mean_effective_weight": _share(value["weight"], trained),
        "ess": _share(value["ratio"] ** 2, trained * value["ratio_sq"]),
        "ess_correction": _share(value["correction"] ** 2, trained * value["correction_sq"]),
    }
    for name in ("zero_gradient", "dropped", "damped"):
        metrics[f"{name}_fraction"] = _share(flag[name], trained)
    for end in ("low", "high"):
        metrics[f"clip_fraction_{end}"] = _share(flag[f"clipped_{end}"], trained)
        metrics[f"out_of_band_fraction_{end}"] = _share(flag[f"out_of_band_{end}"], trained)
    for name in ("ratio", "log_ratio", "log_ratio_sq", "correction"):
        metrics[f"mean_{name}"] = _share(value[name], trained)
    given = [name for name, known in zip(OPTIONAL, host["given"].tolist(), strict=True) if known]
    return metrics | {name: _share(value[name], trained) for name in given}


def _quantile(count_N: Tensor, share: float) -> float:
    """The ratio below which the share of the tokens lies, to the width of a bin; 0 without tokens."""
    if not count_N.sum() > 0:
        return 0.0
    place = int((count_N.cumsum(0) < share * count_N.sum()).sum())
    return math.exp((place - BINS // 2) / BINS_PER_UNIT)


def _reduce(name: str, left: Tensor, right: Tensor) -> Tensor:
    return torch.maximum(left, right) if name in REDUCED_BY_MAX else left + right


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
