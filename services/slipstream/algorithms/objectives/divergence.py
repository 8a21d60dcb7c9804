"""The objectives that drop a token by the distance of the two policies at its position.

Suffixes: _T packed tokens, _K tokens of the vocabulary. p = pi, q = mu, D a divergence of mu and pi.
"""

import torch
from torch import Tensor

from slipstream.algorithms.microbatch import TopK
from slipstream.algorithms.objectives.surrogate import Surrogate, Tokens
from slipstream.algorithms.spec import Dppo, Ipo


def dppo(spec: Dppo, tokens: Tokens) -> Surrogate:
    """J = sg(min(r, cap)) M A l; M drops what moves further away from mu where D is above its limit."""
    z_T, A_T = tokens.z_T, tokens.advantages_T
    distance_T, (limit_low, limit_high) = _divergence(spec, tokens), spec.limits
    above_T, below_T = (z_T > 0) & (distance_T > limit_high), (z_T < 0) & (distance_T > limit_low)
    dropped_high_T, dropped_low_T = above_T & (A_T > 0), below_T & (A_T < 0)
    c_T = z_T.exp().clamp(max=torch.inf if spec.cap is None else spec.cap) * ~(dropped_high_T | dropped_low_T)
    return _masked(c_T, tokens, (below_T, above_T), (dropped_low_T, dropped_high_T))


def ipo(spec: Ipo, tokens: Tokens) -> Surrogate:
    """J = sg(r M) A l; M keeps |p - q| <= limit."""
    z_T, l_T = tokens.z_T, tokens.logprobs_T
    far_T = (l_T.exp() - (l_T - tokens.log_ratio_T).exp()).abs() > spec.limit
    sides = far_T & (z_T < 0), far_T & (z_T > 0)
    return _masked(z_T.exp() * ~far_T, tokens, sides, sides)


def binary_kl(log_p_T: Tensor, log_q_T: Tensor) -> Tensor:
    """KL(q || p) of the two-way split: the sampled token, and everything else."""
    inside_T = log_q_T.exp() * (log_q_T - log_p_T)
    return inside_T + _relative_rest(-torch.expm1(log_q_T), -torch.expm1(log_p_T))


def top_k_divergence(top_k: TopK, log_p_T: Tensor, log_q_T: Tensor, *, total_variation: bool) -> Tensor:
    """Divergence of the split into mu's top K tokens, the sampled one, and everything else."""
    missing_T1 = ~top_k.sampled_TK.any(dim=1, keepdim=True)
    p_TK = torch.cat([top_k.logprobs_TK.exp(), log_p_T.exp()[:, None] * missing_T1], dim=1)
    q_TK = torch.cat([top_k.rollout_logprobs_TK.exp(), log_q_T.exp()[:, None] * missing_T1], dim=1)
    rest_p_T, rest_q_T = (1 - p_TK.sum(1)).clamp(min=0), (1 - q_TK.sum(1)).clamp(min=0)
    if total_variation:
        return 0.5 * ((p_TK - q_TK).abs().sum(1) + (rest_p_T - rest_q_T).abs())
    return _relative(q_TK, p_TK).sum(1) + _relative_rest(rest_q_T, rest_p_T)


def _divergence(spec: Dppo, tokens: Tokens) -> Tensor:
    log_p_T = tokens.logprobs_T
    log_q_T = log_p_T - tokens.log_ratio_T
    if spec.divergence == "binary_tv":
        return (log_p_T.exp() - log_q_T.exp()).abs()
    if spec.divergence == "binary_kl":
        return binary_kl(log_p_T, log_q_T)
    assert tokens.top_k is not None, "policy_loss checks it"
    variation = spec.divergence == "topk_tv"
    return top_k_divergence(tokens.top_k, log_p_T, log_q_T, total_variation=variation)


def _relative(q: Tensor, p: Tensor) -> Tensor:
    """q log(q / p), and 0 where q is 0."""
    return torch.where(q > 0, q * (q.log() - p.log()), 0.0)


def _relative_rest(q_T: Tensor, p_T: Tensor) -> Tensor:
    """Return `_relative` of the rest, 1 minus a sum. Its p may round to 0, so it is at least one epsilon."""
    return _relative(q_T, p_T.clamp(min=torch.finfo(p_T.dtype).eps))


def _masked(
    c_T: Tensor, tokens: Tokens, outside: tuple[Tensor, Tensor], dropped: tuple[Tensor, Tensor]
) -> Surrogate:
    return Surrogate(
        value_T=c_T * tokens.advantages_T * tokens.logprobs_T,
        weight_T=c_T,
        log_ratio_T=tokens.z_T,
        below_T=outside[0],
        above_T=outside[1],
        clipped_low_T=dropped[0],
        clipped_high_T=dropped[1],
    )
