"""The objectives over the ratio of a sequence: each token carries J of its sequence and, beside it, g / A.

Suffixes: _T packed tokens, _B sequences. z = l - a; the statistics of a sequence run over its mask. The six
aggregations give every token of a sequence the same weight w, so that w g is the derivative of the whole sum
of w J by the logprob of one token. A factor of one token (a correction by token, over age, top_entropy)
weighs J and g of that token: each token then stands for itself, with J_t = sg(S) pi_t / sg(pi_t) A, as in
gspo_token.
"""

import torch
from torch import Tensor

from slipstream.algorithms.objectives.surrogate import Surrogate, Tokens, never
from slipstream.algorithms.objectives.token import clipped
from slipstream.algorithms.ratios import LOG_RATIO_LIMIT, bounded
from slipstream.algorithms.spec import Gmpo, Gspo, GspoToken, Rspo, Vespo

PHI_OPEN = 0.05
"""A VESPO weight below this counts as damped."""


def gspo(spec: Gspo | GspoToken, tokens: Tokens) -> Surrogate:
    """J = min(s A, clip(s) A), s = exp(mean z); g = s A where the minimum is s A."""
    mean_T = tokens.of_token(tokens.sequence_mean(tokens.log_ratio_T))
    low = 0.0 if spec.clip_low is None else 1.0 - spec.clip_low
    high = torch.inf if spec.clip_high is None else 1.0 + spec.clip_high
    return clipped(tokens, bounded(mean_T), (low, high), spec.dual_clip, mean_T.abs() <= LOG_RATIO_LIMIT)


def gmpo(spec: Gmpo, tokens: Tokens) -> Surrogate:
    """J = S A, S = exp(mean of z cut on the side of A); g = S A where z was not cut."""
    return _geometric_mean(tokens, tokens.log_ratio_T, spec.log_clip)


def rspo(spec: Rspo, tokens: Tokens) -> Surrogate:
    """J of gmpo, with the router-shift weight gamma before it, after it, or (literal_b) by sign(A) inside."""
    assert tokens.router_shift_T is not None, "policy_loss checks it"
    log_gamma_T = tokens.router_shift_T.clamp(spec.gamma_min, 1.0).log()
    z_T = tokens.log_ratio_T
    if spec.placement == "before":
        return _geometric_mean(tokens, z_T + log_gamma_T, spec.log_clip)
    if spec.placement == "literal_b":
        log_gamma_T = log_gamma_T * tokens.advantages_T.sign()
    return _geometric_mean(tokens, z_T, spec.log_clip, log_factor_T=log_gamma_T)


def vespo(spec: Vespo, tokens: Tokens) -> Surrogate:
    """J = sg(phi) A l, phi = W^k exp(lambda (1 - W)), W = exp(sum z); g = phi A."""
    log_W_T = bounded(tokens.of_token(tokens.sequence_sum(tokens.log_ratio_T)))
    positive_T = tokens.advantages_T >= 0
    k_T = torch.full_like(log_W_T, spec.k_neg).masked_fill(positive_T, spec.k_pos)
    lambda_T = torch.full_like(log_W_T, spec.lambda_neg).masked_fill(positive_T, spec.lambda_pos)
    phi_T = (lambda_T + k_T * log_W_T - lambda_T * log_W_T.exp()).exp()
    return Surrogate(
        value_T=phi_T * tokens.advantages_T * tokens.logprobs_T,
        weight_T=phi_T,
        log_ratio_T=log_W_T,
        below_T=never(phi_T),
        above_T=never(phi_T),
        clipped_low_T=never(phi_T),
        clipped_high_T=never(phi_T),
        damped_T=phi_T < PHI_OPEN,
    )


def _geometric_mean(
    tokens: Tokens, z_T: Tensor, log_clip: float | None, *, log_factor_T: Tensor | None = None
) -> Surrogate:
    """J = S A with S = exp(mean of (cut z + log factor))."""
    bound, A_T = torch.inf if log_clip is None else log_clip, tokens.advantages_T
    low_T, high_T = (A_T < 0) & (z_T < -bound), (A_T > 0) & (z_T > bound)
    cut_T = torch.where(A_T > 0, z_T.clamp(max=bound), z_T.clamp(min=-bound))
    mean_T = tokens.of_token(tokens.sequence_mean(cut_T if log_factor_T is None else cut_T + log_factor_T))
    S_T = bounded(mean_T).exp()
    return Surrogate(
        value_T=S_T * A_T,
        weight_T=S_T * ((mean_T.abs() <= LOG_RATIO_LIMIT) & ~low_T & ~high_T),
        log_ratio_T=bounded(z_T),
        below_T=z_T < -bound,
        above_T=z_T > bound,
        clipped_low_T=low_T,
        clipped_high_T=high_T,
    )
