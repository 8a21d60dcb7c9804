"""KL to a reference, drift from the rollout policy, entropy: the terms beside the policy loss.

Suffixes: _T packed tokens. Each term of a token comes with its slope by that token's logprob.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.algorithms.objectives import Tokens
from slipstream.algorithms.ratios import LOG_RATIO_LIMIT, bounded, k3
from slipstream.algorithms.spec import DriftPenalty, Entropy, Kl, KlCov


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """What a regulariser adds to the loss at each token, before the aggregation's weight."""

    value_T: Tensor
    slope_T: Tensor
    """Derivative of the term by the token's logprob."""


def kl_term(spec: Kl, log_ratio_ref_T: Tensor, log_ratio_T: Tensor) -> Term:
    """Compute coefficient × the estimator.

    log_ratio_ref_T: [T] d = l - ref. log_ratio_T: [T] l - a, to the objective's anchor (0 for pg). In
    k3_unbiased = w r k3 the factor w = min(1, cap / r) is a constant, so that the slope is w r d.
    """
    d_T, moves_T = bounded(log_ratio_ref_T), log_ratio_ref_T.abs() <= LOG_RATIO_LIMIT
    k3_T = k3(-d_T)
    if spec.resolved_estimator == "k2":
        value_T, slope_T = 0.5 * d_T.square(), d_T * moves_T
    elif spec.resolved_estimator == "k3":
        value_T, slope_T = k3_T, -torch.expm1(-d_T) * moves_T
    else:
        c_T = bounded(log_ratio_T).exp().clamp(max=spec.resolved_cap)
        value_T, slope_T = c_T * k3_T, c_T * d_T * moves_T
    return Term(value_T=spec.coefficient * value_T, slope_T=spec.coefficient * slope_T)


def drift_term(spec: DriftPenalty, log_ratio_rollout_T: Tensor, tokens: Tokens) -> Term:
    """Compute coefficient × z^2 with z = l - mu [T], or its sum over the sequence."""
    share_T = torch.ones_like(log_ratio_rollout_T)
    if spec.level == "sequence":
        log_ratio_rollout_T = tokens.of_token(tokens.sequence_sum(log_ratio_rollout_T))
        share_T = 1 / tokens.of_token(tokens.lengths_B).clamp(min=1)
    z_T, moves_T = bounded(log_ratio_rollout_T), log_ratio_rollout_T.abs() <= LOG_RATIO_LIMIT
    return Term(
        value_T=spec.coefficient * z_T.square() * share_T, slope_T=2 * spec.coefficient * z_T * moves_T
    )


def covariance_term(spec: KlCov, log_ratio_T: Tensor, held_T: Tensor) -> Term:
    """Compute coefficient × |z| with z = l - a [T], to the objective's anchor, where held_T [T] is true."""
    z_T, moves_T = bounded(log_ratio_T), held_T & (log_ratio_T.abs() <= LOG_RATIO_LIMIT)
    return Term(
        value_T=spec.coefficient * z_T.abs() * held_T, slope_T=spec.coefficient * z_T.sign() * moves_T
    )


def adapt_entropy(spec: Entropy, coefficient: float, mean_entropy: float) -> float:
    """Return the coefficient of the next step, from the mean entropy (nats per token) of this one."""
    if spec.target is None:
        return coefficient
    step = spec.step if mean_entropy <= spec.target else -spec.step
    return min(max(0.0, coefficient + step), spec.largest)


def active_entropy(spec: Entropy, coefficient: float, mean_entropy: float) -> float:
    """Return the coefficient that counts in this step: 0 while the entropy is above its target."""
    if spec.target is None:
        return coefficient
    return min(coefficient, spec.largest) if mean_entropy <= spec.target else 0.0


def reward_penalty(
    coefficient: float, rollout_logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor
) -> Tensor:
    """Return coefficient × k1 of each token, [T] without gradient, to be taken off the reward.

    k1 = log mu - log ref at the tokens that mu sampled: its sum over a completion estimates KL(mu || ref),
    and as a reward it gives the exact gradient of the divergence on policy. 0 where mask [T] is 0.
    """
    k1_T = bounded(rollout_logprobs.detach() - ref_logprobs.detach())
    return torch.where(mask.bool(), coefficient * k1_T, 0.0)


def add_terms(terms: Sequence[Term]) -> Term | None:
    """Sum several terms; None for none."""
    if not terms:
        return None
    value_T, slope_T = terms[0].value_T, terms[0].slope_T
    for term in terms[1:]:
        value_T, slope_T = value_T + term.value_T, slope_T + term.slope_T
    return Term(value_T=value_T, slope_T=slope_T)
