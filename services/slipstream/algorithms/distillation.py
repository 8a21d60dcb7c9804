"""On-policy distillation: the teacher's advantage of sampled tokens, and divergences between distributions.

Suffixes: _T packed tokens, _K the teacher's likeliest tokens at a position, _C cells: those and the sampled
token. All other tokens together are one more cell, the rest.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms import microbatch, ratios, regularizers
from slipstream.algorithms.spec import Distillation

LEAST_LOGPROB: Final = -20.0
"""Least logprob of a token under the teacher, nats. Without it a token of probability 0 would make the
reverse divergence infinite."""
LEAST_REST: Final = 1e-5
"""Least probability of the rest. With float32 logprobs, 1 minus their sum has an error of about 1e-6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceTerm:
    """A divergence at each token, and its derivatives by the policy's logprobs."""

    term: regularizers.Term
    """Value of the divergence, in nats × coefficient, and its slope by the sampled token's logprob."""
    slope_TK: Tensor
    """Slope by the policy's logprobs of the teacher's likeliest tokens."""


def teacher_advantages(
    spec: Distillation, advantages_T: Tensor, logprobs_T: Tensor, teacher_T: Tensor
) -> Tensor:
    """Return reward_weight A + coefficient sg(t - l), [T], with t - l clamped to +-20.

    The kinds with a divergence have only the first summand.
    """
    weighed_T = spec.reward_weight * advantages_T
    if spec.kind != "advantage":
        return weighed_T
    return weighed_T + spec.coefficient * ratios.bounded(teacher_T - logprobs_T.detach())


def divergence_term(spec: Distillation, logprobs_T: Tensor, taught: microbatch.Taught) -> DivergenceTerm:
    """Compute coefficient × the divergence over cells, without gradient: the slopes are the gradient.

    With p the teacher's and q the policy's probabilities of cells c, and r the rest:
        KL(q || p) = sum_c q_c (l_c - t_c) + q_r (l_r - t_r),  by l_c:  q_c ((l_c - t_c) - (l_r - t_r))
        KL(p || q) = sum_c p_c (t_c - l_c) + p_r (t_r - l_r),  by l_c:  -p_c + p_r q_c / q_r
    where q_r = 1 - sum_c q_c depends on every l_c. A q_r at its floor is a constant.
    """
    top = taught.top
    assert top is not None, "check sees to it"
    own_T = ~top.sampled_TK.any(dim=1)
    live_TC = torch.cat([torch.ones_like(top.sampled_TK), own_T[:, None]], dim=1)
    l_TC = _cells(top.logprobs_TK.detach(), logprobs_T.detach(), live_TC)
    t_TC = _cells(top.teacher_logprobs_TK, taught.logprobs_T, live_TC).clamp(min=LEAST_LOGPROB)
    q_TC, p_TC = l_TC.exp() * live_TC, t_TC.exp() * live_TC
    (q_r_T, moves_T), (p_r_T, _) = _rest(q_TC), _rest(p_TC)
    apart_TC, apart_r_T = l_TC - t_TC, q_r_T.log() - p_r_T.log()
    reverse_T = (q_TC * apart_TC).sum(dim=1) + q_r_T * apart_r_T
    reverse_slope_TC = q_TC * (1 + apart_TC - ((1 + apart_r_T) * moves_T)[:, None])
    forward_T = -(p_TC * apart_TC).sum(dim=1) - p_r_T * apart_r_T
    forward_slope_TC = q_TC * (p_r_T / q_r_T * moves_T)[:, None] - p_TC
    forward, reverse = spec.shares
    value_T = spec.coefficient * (forward * forward_T + reverse * reverse_T)
    slope_TC = spec.coefficient * (forward * forward_slope_TC + reverse * reverse_slope_TC)
    slope_TC = slope_TC.to(logprobs_T.dtype)
    return DivergenceTerm(
        term=regularizers.Term(value_T=value_T.to(logprobs_T.dtype), slope_T=slope_TC[:, -1]),
        slope_TK=slope_TC[:, :-1],
    )


def _cells(top_TK: Tensor, sampled_T: Tensor, live_TC: Tensor) -> Tensor:
    """The logprobs of the cells, [T, C] float64; 0 where the sampled token is among the likeliest ones."""
    both_TC = torch.cat([top_TK.double(), sampled_T.double()[:, None]], dim=1)
    return torch.where(live_TC, both_TC, 0.0)


def _rest(probability_TC: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of the rest, [T], and whether it is above its floor."""
    rest_T = 1 - probability_TC.sum(dim=1)
    return rest_T.clamp(min=LEAST_REST), rest_T > LEAST_REST
