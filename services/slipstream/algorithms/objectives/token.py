"""The objectives over the ratio of one token: J and, beside it, g / A.

Suffixes: _T packed tokens. l logprobs, A advantages, z = l - a, r = exp(z), c a weight without gradient.
"""

from dataclasses import replace

import torch
from torch import Tensor

from slipstream.algorithms.objectives.surrogate import Surrogate, Tokens, never
from slipstream.algorithms.spec import Cispo, Is, Pg, PpoClip, RolloutIs, Sapo, Topr

GATE_OPEN = 0.5
"""A SAPO gate below this counts as damped."""


def pg(spec: Pg, tokens: Tokens) -> Surrogate:
    """J = l A; g = A."""
    l_T, A_T = tokens.logprobs_T, tokens.advantages_T
    return _unbounded(l_T * A_T, torch.ones_like(l_T), tokens)


def importance_sampling(spec: Is, tokens: Tokens) -> Surrogate:
    """J = r A; g = r A."""
    return clipped(tokens, tokens.z_T, (0.0, torch.inf), spec.dual_clip, tokens.ratio_has_gradient_T)


def ppo_clip(spec: PpoClip, tokens: Tokens) -> Surrogate:
    """J = min(r A, clip(r) A); g = r A where the minimum is r A."""
    return clipped(tokens, tokens.z_T, spec.band, spec.dual_clip, tokens.ratio_has_gradient_T)


def clipped(
    tokens: Tokens, z_T: Tensor, ends: tuple[float, float], dual_clip: float | None, moves_T: Tensor
) -> Surrogate:
    """J = min(r A, clip(r) A), and at least dual_clip A where A < 0, with r = exp(z_T) of token or sequence.

    moves_T: [T] bool, where r has a gradient.
    """
    low, high = ends
    r_T, A_T = z_T.exp(), tokens.advantages_T
    J_T = torch.minimum(r_T * A_T, r_T.clamp(low, high) * A_T)
    low_T, high_T = (A_T < 0) & (r_T < low), (A_T > 0) & (r_T > high)
    if dual_clip is not None:
        J_T = torch.where(A_T < 0, torch.maximum(J_T, dual_clip * A_T), J_T)
        high_T = high_T | ((A_T < 0) & (r_T > dual_clip))
    return Surrogate(
        value_T=J_T,
        weight_T=r_T * (moves_T & ~low_T & ~high_T),
        log_ratio_T=z_T,
        below_T=r_T < low,
        above_T=r_T > high,
        clipped_low_T=low_T,
        clipped_high_T=high_T,
    )


def cispo(spec: Cispo, tokens: Tokens) -> Surrogate:
    """J = sg(M clip(r)) A l; g = M clip(r) A, where M is 1 without a mask."""
    low, high = spec.band
    r_T, A_T = tokens.z_T.exp(), tokens.advantages_T
    c_T = r_T.clamp(low, high)
    if spec.mask_low is None and spec.mask_high is None:
        return _weighted(c_T, tokens, r_T < low, r_T > high)
    least, most = spec.mask
    masked_low_T, masked_high_T = (A_T < 0) & (r_T < least), (A_T > 0) & (r_T > most)
    weighted = _weighted(c_T * ~(masked_low_T | masked_high_T), tokens, r_T < low, r_T > high)
    return replace(
        weighted,
        clipped_low_T=weighted.clipped_low_T | masked_low_T,
        clipped_high_T=weighted.clipped_high_T | masked_high_T,
    )


def rollout_is(spec: RolloutIs, tokens: Tokens) -> Surrogate:
    """J = sg(r 1[low < r < high]) A l; g = r A inside the band."""
    low, high = spec.band
    r_T = tokens.z_T.exp()
    below_T, above_T = r_T <= low, r_T >= high
    return _weighted(r_T * ~(below_T | above_T), tokens, below_T, above_T)


def topr(spec: Topr, tokens: Tokens) -> Surrogate:
    """J = sg(c) A l, with c = 1 where A > 0 and min(r, 1) elsewhere."""
    r_T, good_T = tokens.z_T.exp(), tokens.advantages_T > 0
    c_T = torch.where(good_T, 1.0, r_T.clamp(max=1.0))
    return _weighted(c_T, tokens, never(r_T), r_T > 1, capped_T=(r_T > 1) & ~good_T)


def sapo(spec: Sapo, tokens: Tokens) -> Surrogate:
    """J = (4 / tau) sigmoid(tau (r - 1)) A; g = r sech^2(tau (r - 1) / 2) A."""
    r_T, A_T = tokens.z_T.exp(), tokens.advantages_T
    tau_T = torch.full_like(A_T, spec.tau_neg).masked_fill(A_T > 0, spec.tau_pos)
    gate_T = torch.sigmoid(tau_T * (r_T - 1))
    sech2_T = 4 * gate_T * torch.sigmoid(-tau_T * (r_T - 1))
    return Surrogate(
        value_T=4 / tau_T * gate_T * A_T,
        weight_T=r_T * sech2_T * tokens.ratio_has_gradient_T,
        log_ratio_T=tokens.z_T,
        below_T=never(r_T),
        above_T=never(r_T),
        clipped_low_T=never(r_T),
        clipped_high_T=never(r_T),
        damped_T=sech2_T < GATE_OPEN,
    )


def _weighted(
    c_T: Tensor, tokens: Tokens, below_T: Tensor, above_T: Tensor, *, capped_T: Tensor | None = None
) -> Surrogate:
    """Return J = sg(c) A l. A token outside the band counts as clipped; for the upper end capped_T may say
    which."""
    return Surrogate(
        value_T=c_T * tokens.advantages_T * tokens.logprobs_T,
        weight_T=c_T,
        log_ratio_T=tokens.z_T,
        below_T=below_T,
        above_T=above_T,
        clipped_low_T=below_T,
        clipped_high_T=above_T if capped_T is None else capped_T,
    )


def _unbounded(value_T: Tensor, weight_T: Tensor, tokens: Tokens) -> Surrogate:
    nowhere_T = never(value_T)
    return Surrogate(
        value_T=value_T,
        weight_T=weight_T,
        log_ratio_T=tokens.z_T,
        below_T=nowhere_T,
        above_T=nowhere_T,
        clipped_low_T=nowhere_T,
        clipped_high_T=nowhere_T,
    )
