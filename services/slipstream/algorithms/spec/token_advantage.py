"""Specification of the advantage that differs from token to token without a critic."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from slipstream.algorithms.spec import checks, kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimalToken(kinds.AdvantageKind):
    """A_t = R - B_t, B_t = sum of R W_t / sum of W_t over the completions of the group with a t-th token.

    W_t = sum over j <= t of rho_j^2 (1 - 2 p_j + sum over the vocabulary of p^2) stands for the squared norm
    of the gradient up to the token: the baseline leans on the completions whose gradient is large there. p is
    that of the policy before the batch, rho its ratio to the policy that sampled, truncated. Where only the
    longest completion is left, its own reward is the baseline, and A_t = 0. It costs two forward passes a
    batch. Range: that of the rewards.
    See The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL, arXiv:2602.07078.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.token_baseline:token_baselines"
    by_token: ClassVar[bool] = True

    kind: Literal["optimal_token"] = "optimal_token"
    cap: checks.Cap | None = 2.0
    """Largest rho; null leaves rho at 1, as for data on policy."""
