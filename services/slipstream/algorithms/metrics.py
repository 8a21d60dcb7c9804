"""What a policy loss says about itself, as sums that add up exactly over microbatches and ranks.

Suffixes: _T packed tokens.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms.objectives import Surrogate
from slipstream.algorithms.ratios import k3, keep, log_ratio

REDUCED_BY_MAX: Final = frozenset({"max_ratio"})
"""The sums that are reduced by their maximum; every other one is added."""

SIDES: Final = ("out_of_band_low", "out_of_band_high", "clipped_low", "clipped_high")
"""Counted once over all tokens, once where A > 0 (_positive) and once where A < 0 (_negative)."""


def loss_sums(
    surrogate: Surrogate, advantages_T: Tensor, mask_T: Tensor, trained_T: Tensor
) -> dict[str, Tensor]:
    """Sum up one microbatch, each sum a float64 scalar without gradient.

    mask_T: [T] bool, the tokens of the batch; trained_T: those of them that no algorithm masked.
    """
    z_T = keep(surrogate.log_ratio_T.double(), trained_T)
    r_T = keep(z_T.exp(), trained_T)
    sums = {
        "tokens": mask_T.sum(),
        "trained_tokens": trained_T.sum(),
        "masked_over_age": (mask_T & ~trained_T).sum(),
        "ratio_sum": r_T.sum(),
        "ratio_sq_sum": r_T.square().sum(),
        "log_ratio_sum": z_T.sum(),
        "log_ratio_sq_sum": z_T.square().sum(),
        "effective_weight_sum": keep(surrogate.effective_weight_T.double(), trained_T).sum(),
        "max_ratio": r_T.max() if r_T.numel() else r_T.sum(),
    }
    sums.update(_by_sign(surrogate, advantages_T, trained_T))
    return {name: value.detach().double() for name, value in sums.items()}


def kl_sums(name: str, logprobs_T: Tensor, other_logprobs_T: Tensor, trained_T: Tensor) -> dict[str, Tensor]:
    """Sum k3 over the trained tokens, for "rollout" KL(mu || pi), for "ref" KL(pi || ref)."""
    z_T = log_ratio(logprobs_T.detach().double(), other_logprobs_T.double())
    return {f"kl_{name}_sum": keep(k3(z_T if name == "rollout" else -z_T), trained_T).sum()}


def merge(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Reduce the sums of several microbatches to those of their union."""
    whole: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = _reduce(name, whole[name], value) if name in whole else value
    return whole


def finalize(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Turn sums into the metrics of a dashboard; a share of no tokens is 0.

    clip_fraction_low, clip_fraction_high: share of trained tokens on which that end of the band took effect.
    out_of_band_fraction_low, out_of_band_fraction_high: share whose ratio is outside, whatever A's sign.
    mean_ratio, max_ratio, mean_log_ratio, mean_log_ratio_sq, mean_effective_weight: over trained tokens.
    kl_rollout, kl_ref: in nats per token, where those logprobs were given.
    ess: (sum r)^2 / (n sum r^2), the share of the tokens that the ratios leave effective.
    over_age_fraction: share of the batch's tokens that were too old to train.
    """
    value = _to_floats(sums)
    trained = value["trained_tokens"]
    metrics = {
        "tokens": value["tokens"],
        "trained_tokens": trained,
        "max_ratio": value["max_ratio"],
        "mean_ratio": _share(value["ratio_sum"], trained),
        "mean_log_ratio": _share(value["log_ratio_sum"], trained),
        "mean_log_ratio_sq": _share(value["log_ratio_sq_sum"], trained),
        "mean_effective_weight": _share(value["effective_weight_sum"], trained),
        "ess": _share(value["ratio_sum"] ** 2, trained * value["ratio_sq_sum"]),
        "over_age_fraction": _share(value["masked_over_age"], value["tokens"]),
    }
    kl = {f"kl_{name}": f"kl_{name}_sum" for name in ("rollout", "ref")}
    metrics.update({name: _share(value[total], trained) for name, total in kl.items() if total in value})
    return metrics | dict(_side_fractions(value))


def _by_sign(surrogate: Surrogate, advantages_T: Tensor, trained_T: Tensor) -> dict[str, Tensor]:
    masks = (surrogate.below_T, surrogate.above_T, surrogate.clipped_low_T, surrogate.clipped_high_T)
    signs = {
        "": trained_T,
        "_positive": trained_T & (advantages_T > 0),
        "_negative": trained_T & (advantages_T < 0),
    }
    sums = {f"trained_tokens{sign}": sign_T.sum() for sign, sign_T in signs.items()}
    for name, side_T in zip(SIDES, masks, strict=True):
        sums |= {f"{name}{sign}": (side_T & sign_T).sum() for sign, sign_T in signs.items()}
    return sums


def _side_fractions(value: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for side in SIDES:
        kind, _, end = side.replace("clipped", "clip").rpartition("_")
        for sign in ("", "_positive", "_negative"):
            yield f"{kind}_fraction_{end}{sign}", _share(value[side + sign], value["trained_tokens" + sign])


def _to_floats(sums: Mapping[str, Tensor]) -> dict[str, float]:
    values: list[float] = torch.stack(list(sums.values())).tolist()
    return dict(zip(sums, values, strict=True))


def _reduce(name: str, left: Tensor, right: Tensor) -> Tensor:
    return torch.maximum(left, right) if name in REDUCED_BY_MAX else left + right


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
