"""Metrics of a policy loss, from sums that add up exactly over microbatches and ranks.

Suffixes: _N bins of the histogram, _Q quantiles. The sums are those of a tally, by staleness and sign of A.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms.tally import AGES, BINS, BINS_PER_UNIT, FLAGS, OPTIONAL, VALUES

REDUCED_BY_MAX: Final = frozenset({"max_ratio", "given"})
"""The sums that are reduced by their maximum; every other one is added."""

SIGNS: Final = {"": slice(None), "_positive": slice(2, 3), "_negative": slice(0, 1), "_zero": slice(1, 2)}
"""Suffix of a metric, and which of the cells A < 0, A = 0, A > 0 it is over."""

QUANTILES: Final = {"p1_ratio": 0.01, "p10_ratio": 0.1, "p50_ratio": 0.5, "p90_ratio": 0.9, "p99_ratio": 0.99}
"""Metric, and the share of the trained tokens whose ratio is at most that."""


def merge(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Reduce the sums of several microbatches to those of their union."""
    total: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = _reduce(name, total[name], value) if name in total else value
    return total


def finalize(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Turn sums into the metrics of a dashboard; a share of no tokens is 0.

    Each also comes with the suffixes _positive, _negative and _zero, by the sign of the advantage.
    tokens, trained_tokens: of the batch, and those of them that were not over age; over_age_fraction.
    clip_fraction_low, clip_fraction_high: share of trained tokens on which that end of the band took effect.
    out_of_band_fraction_low, out_of_band_fraction_high: share whose ratio is outside, whatever A's sign.
    zero_gradient_fraction: share of the trained tokens whose g is 0, by clipping, masks or corrections.
    dropped_fraction: share that a correction or a selection dropped. damped_fraction: see Surrogate.
    mean_ratio, max_ratio, mean_log_ratio, mean_log_ratio_sq: of the ratio that is bounded.
    p1_ratio, p10_ratio, p50_ratio, p90_ratio, p99_ratio: its quantiles, to 0.8 %, half a bin of the tally.
    mean_ratio_sq: mean of r^2. mean_effective_weight: mean of c g / A.
    mean_correction, mean_correction_sq: mean of c, and of c^2.
    ess, ess_correction: (sum x)^2 / (n sum x^2) for x = r and x = c, the share of tokens left effective.
    kl_rollout (KL(mu || pi)), kl_ref (KL(pi || ref)), kl_teacher (KL(pi || teacher)), entropy: nats per
    token, where the loss has the logprobs for them.
    router_shift: mean of rspo's gamma without its floor; 1 where the routers have not moved.
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


def _marginal(host: Mapping[str, Tensor], ages: slice, signs: slice) -> dict[str, float]:
    """Return the metrics of one selection of cells."""
    flag = dict(zip(FLAGS, host["flags"][:, ages, signs].sum((1, 2)).tolist(), strict=True))
    value = dict(zip((*VALUES, *OPTIONAL), host["values"][:, ages, signs].sum((1, 2)).tolist(), strict=True))
    tokens, trained = float(host["tokens"][ages, signs].sum()), flag["trained"]
    largest = float(host["max_ratio"][ages, signs].max())
    metrics = {
        "tokens": tokens,
        "trained_tokens": trained,
        "over_age_fraction": _share(tokens - trained, tokens),
        "max_ratio": max(largest, 0.0),
        **_quantiles(host["histogram"][ages, signs].sum((0, 1)), largest=max(largest, 0.0)),
        "mean_effective_weight": _share(value["weight"], trained),
        "ess": _share(value["ratio"] ** 2, trained * value["ratio_sq"]),
        "ess_correction": _share(value["correction"] ** 2, trained * value["correction_sq"]),
    }
    for name in ("zero_gradient", "dropped", "damped"):
        metrics[f"{name}_fraction"] = _share(flag[name], trained)
    for end in ("low", "high"):
        metrics[f"clip_fraction_{end}"] = _share(flag[f"clipped_{end}"], trained)
        metrics[f"out_of_band_fraction_{end}"] = _share(flag[f"out_of_band_{end}"], trained)
    for name in ("ratio", "ratio_sq", "log_ratio", "log_ratio_sq", "correction", "correction_sq"):
        metrics[f"mean_{name}"] = _share(value[name], trained)
    optional = [name for name, is_given in zip(OPTIONAL, host["given"].tolist(), strict=True) if is_given]
    return metrics | {name: _share(value[name], trained) for name in optional}


def _quantiles(count_N: Tensor, *, largest: float) -> dict[str, float]:
    """The quantiles of the ratio, each the middle of its bin, and at most the largest; 0 without tokens."""
    tokens = count_N.sum()
    if not tokens > 0:
        return dict.fromkeys(QUANTILES, 0.0)
    place_Q = torch.searchsorted(count_N.cumsum(0), tokens * torch.tensor([*QUANTILES.values()]).double())
    ratio_Q = ((place_Q - BINS // 2).double() / BINS_PER_UNIT).exp().clamp(max=largest)
    return dict(zip(QUANTILES, ratio_Q.tolist(), strict=True))


def _reduce(name: str, left: Tensor, right: Tensor) -> Tensor:
    return torch.maximum(left, right) if name in REDUCED_BY_MAX else left + right


def _share(part: float, total: float) -> float:
    return part / total if total else 0.0
