"""The corrections: a constant c for each token, which multiplies J and g after the objective's own clipping.

Suffixes: _T packed tokens, _B sequences, _N tokens of a whole batch. rho = prox / mu.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from slipstream.algorithms.objectives import Tokens
from slipstream.algorithms.ratios import LOG_RATIO_LIMIT, bounded
from slipstream.algorithms.spec import (
    Correction,
    GeometricRejection,
    IcePop,
    M2po,
    Mis,
    Opsm,
    OutlierTokens,
    Tis,
)
from slipstream.functions import load_function


def correction_weight(spec: Correction, tokens: Tokens, *, m2po_limit: float | None = None) -> Tensor:
    """Return c [T], without gradient; 0 where the token is dropped.

    tokens: with rollout logprobs. m2po_limit: tau over the whole optimizer batch, for m2po; without it, that
    of these tokens.
    """
    drift_T, log_rho_T = tokens.drift_T, tokens.log_rho_T
    assert drift_T is not None, "check sees to it"
    assert log_rho_T is not None, "check sees to it"
    if isinstance(spec, M2po):
        z_T = drift_T if spec.scope == "harmful" else log_rho_T
        limit = m2po_limit
        if limit is None:
            limit = m2po_bound(spec, m2po_sizes(spec, z_T, tokens.advantages_T, tokens.mask_T))
        return m2po(spec, z_T, tokens.advantages_T, limit).to(z_T)
    return _function(spec.implementation)(spec, tokens, drift_T if spec.reads == "drift" else log_rho_T)


def m2po_sizes(spec: M2po, log_ratio_T: Tensor, advantages_T: Tensor, mask_T: Tensor) -> Tensor:
    """Return |z| of the tokens that count, and -1 for the others, [T].

    log_ratio_T: [T] l - log mu for the scope harmful, log prox - log mu for all.
    """
    z_T = bounded(log_ratio_T)
    counts_T = mask_T & _harmful(z_T, advantages_T) if spec.scope == "harmful" else mask_T
    return torch.where(counts_T, z_T.abs(), -1.0)


def m2po_bound(spec: M2po, size_N: Tensor) -> float:
    """Return the bound on |z| that brings the second moment down to the threshold; inf where it is there.

    size_N: `m2po_sizes` of the whole optimizer batch, of which it is a statistic. One copy to the host.
    """
    if not size_N.numel():
        return torch.inf
    size_N = size_N.sort().values.double()
    counts_N = size_N >= 0
    size_N.clamp_(min=0)
    is_there = size_N.square().sum() / counts_N.sum().clamp(min=1) <= spec.threshold
    bound = _winsorised if spec.scope == "harmful" else _trimmed
    return float(torch.where(is_there, torch.inf, bound(size_N, counts_N, spec.threshold)))


def _winsorised(size_N: Tensor, counts_N: Tensor, threshold: float) -> Tensor:
    """The largest tau with mean of min(size, tau)^2 <= threshold; the sizes are overwritten.

    They rise; before them are zeros, of the tokens that do not count.
    """
    total = counts_N.sum()
    square_N = size_N.square_()
    moment_N = (total - counts_N.cumsum(0)).double().mul_(square_N).add_(square_N.cumsum(0))
    below_N = counts_N & (moment_N <= threshold * total)
    left = threshold * total - square_N.masked_fill(~below_N, 0.0).sum()
    return (left / (total - below_N.sum())).sqrt()


def _trimmed(size_N: Tensor, counts_N: Tensor, threshold: float) -> Tensor:
    """The largest size up to which, ties included, the mean of size^2 is <= threshold; 0 without one."""
    rank_N = counts_N.cumsum(0)
    fits_N = counts_N & (size_N.square().cumsum(0) / rank_N <= threshold)
    last_of_ties_N = torch.cat([size_N[1:] > size_N[:-1], fits_N.new_ones(1)])
    return torch.where(fits_N & last_of_ties_N, size_N, 0.0).max()


def _harmful(z_T: Tensor, advantages_T: Tensor) -> Tensor:
    return ((advantages_T > 0) & (z_T > 0)) | ((advantages_T < 0) & (z_T < 0))


def m2po(spec: M2po, log_ratio_T: Tensor, advantages_T: Tensor, limit: float) -> Tensor:
    z_T = bounded(log_ratio_T)
    if spec.scope == "all":
        return z_T.abs() <= limit
    high = max(math.expm1(limit) if limit <= LOG_RATIO_LIMIT else math.inf, spec.clip_high)
    low = max(-math.expm1(-limit), spec.clip_low)
    r_T = z_T.exp()
    return ~(_harmful(z_T, advantages_T) & ((r_T > 1 + high) | (r_T < 1 - low)))


def tis(spec: Tis, tokens: Tokens, log_rho_T: Tensor) -> Tensor:
    return _rho(spec.level, tokens, log_rho_T).clamp(max=spec.cap)


def mis(spec: Mis, tokens: Tokens, log_rho_T: Tensor) -> Tensor:
    rho_T = _rho(spec.level, tokens, log_rho_T)
    weight_T = rho_T if spec.mask_weight == "ratio" else torch.ones_like(rho_T)
    return weight_T * _inside(rho_T, spec.low, spec.high)


def icepop(spec: IcePop, tokens: Tokens, log_rho_T: Tensor) -> Tensor:
    rho_T = _rho("token", tokens, log_rho_T)
    return rho_T * _inside(rho_T, spec.low, spec.high)


def geometric_rejection(spec: GeometricRejection, tokens: Tokens, log_rho_T: Tensor) -> Tensor:
    keep_T = _inside(_rho("geometric", tokens, log_rho_T), spec.low, spec.high)
    if spec.mask_weight == "one":
        return keep_T.to(log_rho_T)
    rho_T = _rho("token", tokens, log_rho_T)
    return (rho_T if spec.cap is None else rho_T.clamp(max=spec.cap)) * keep_T


def opsm(spec: Opsm, tokens: Tokens, drift_T: Tensor) -> Tensor:
    negative_B = tokens.sequence_mean(tokens.advantages_T) < 0
    drifted_B = -tokens.sequence_mean(drift_T) > spec.delta
    return tokens.of_token(~(negative_B & drifted_B)).to(drift_T)


def outlier_tokens(spec: OutlierTokens, tokens: Tokens, drift_T: Tensor) -> Tensor:
    high = torch.inf if spec.high is None else spec.high
    outlier_T = ~_inside(bounded(drift_T).exp(), spec.low, high)
    return tokens.of_token(tokens.sequence_sum(outlier_T.to(drift_T)) == 0).to(drift_T)


def _rho(level: str, tokens: Tokens, log_rho_T: Tensor) -> Tensor:
    """rho of the token, or of its sequence as a product or a geometric mean; [T]."""
    if level == "token":
        return bounded(log_rho_T).exp()
    over = tokens.sequence_sum if level == "sequence" else tokens.sequence_mean
    return tokens.of_token(bounded(over(log_rho_T)).exp())


def _inside(rho_T: Tensor, low: float | None, high: float) -> Tensor:
    return (rho_T >= (low or 0.0)) & (rho_T <= high)


@cache
def _function(name: str) -> Callable[[Any, Tokens, Tensor], Tensor]:
    return load_function(name)
