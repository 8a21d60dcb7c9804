"""The policy objectives: the surrogate J of each token, whose gradient is g.

Suffixes: _T packed tokens. l logprobs, a anchor logprobs, A advantages, r = exp(l - a).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from slipstream.algorithms.ratios import LOG_RATIO_LIMIT, log_ratio
from slipstream.algorithms.spec import Cispo, Is, Objective, Pg, PpoClip, band


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """The surrogate of each token and, detached, what the metrics count."""

    value_T: Tensor
    """J, to be maximised."""
    log_ratio_T: Tensor
    """z = log r."""
    effective_weight_T: Tensor
    """g / A: what the objective makes of the advantage."""
    below_T: Tensor
    """Ratio under the band."""
    above_T: Tensor
    """Ratio over the band."""
    clipped_low_T: Tensor
    """The lower end took effect: ppo_clip has no gradient there, cispo a raised weight."""
    clipped_high_T: Tensor
    """The upper end took effect: ppo_clip has no gradient there, cispo a capped weight."""


def surrogate(
    spec: Objective, logprobs_T: Tensor, anchor_logprobs_T: Tensor, advantages_T: Tensor
) -> Surrogate:
    """Compute the objective's surrogate of each token.

    logprobs_T: [T] nats, with gradient. anchor_logprobs_T, advantages_T: [T], taken as constants.
    All three must be finite; see `keep` for tokens that are masked out.
    """
    return _SURROGATES[spec.kind](spec, logprobs_T, anchor_logprobs_T, advantages_T.detach())


def _ppo_clip(spec: PpoClip, l_T: Tensor, a_T: Tensor, A_T: Tensor) -> Surrogate:
    low, high = band(spec)
    z_T = log_ratio(l_T, a_T)
    r_T = z_T.exp()
    J_T = torch.minimum(r_T * A_T, r_T.clamp(low, high) * A_T)
    clipped_low_T, clipped_high_T = (A_T < 0) & (r_T < low), (A_T > 0) & (r_T > high)
    g_T = torch.where(clipped_low_T | clipped_high_T, 0.0, _gradient_of_ratio(l_T, a_T))
    return _surrogate(J_T, z_T, g_T, (low, high), clipped_low_T, clipped_high_T)


def _cispo(spec: Cispo, l_T: Tensor, a_T: Tensor, A_T: Tensor) -> Surrogate:
    low, high = band(spec)
    z_T = log_ratio(l_T, a_T)
    r_T = z_T.detach().exp()
    c_T = r_T.clamp(low, high)
    return _surrogate(c_T * A_T * l_T, z_T, c_T, (low, high), r_T < low, r_T > high)


def _pg(spec: Pg, l_T: Tensor, a_T: Tensor, A_T: Tensor) -> Surrogate:
    z_T = log_ratio(l_T, a_T)
    never_T = torch.zeros_like(z_T, dtype=torch.bool)
    return _surrogate(l_T * A_T, z_T, torch.ones_like(z_T), band(spec), never_T, never_T)


def _is(spec: Is, l_T: Tensor, a_T: Tensor, A_T: Tensor) -> Surrogate:
    z_T = log_ratio(l_T, a_T)
    never_T = torch.zeros_like(z_T, dtype=torch.bool)
    return _surrogate(z_T.exp() * A_T, z_T, _gradient_of_ratio(l_T, a_T), band(spec), never_T, never_T)


def _gradient_of_ratio(l_T: Tensor, a_T: Tensor) -> Tensor:
    z_T = (l_T - a_T).detach()
    return torch.where(z_T.abs() <= LOG_RATIO_LIMIT, z_T.exp(), 0.0)


def _surrogate(
    value_T: Tensor,
    z_T: Tensor,
    weight_T: Tensor,
    ends: tuple[float, float],
    clipped_low_T: Tensor,
    clipped_high_T: Tensor,
) -> Surrogate:
    z_T = z_T.detach()
    r_T = z_T.exp()
    return Surrogate(
        value_T=value_T,
        log_ratio_T=z_T,
        effective_weight_T=weight_T.detach(),
        below_T=r_T < ends[0],
        above_T=r_T > ends[1],
        clipped_low_T=clipped_low_T,
        clipped_high_T=clipped_high_T,
    )


_SURROGATES: Final[Mapping[str, Callable[[Any, Tensor, Tensor, Tensor], Surrogate]]] = MappingProxyType(
    {
        "ppo_clip": _ppo_clip,
        "cispo": _cispo,
        "pg": _pg,
        "is": _is,
    }
)
