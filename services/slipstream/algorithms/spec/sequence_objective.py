"""Objectives over the ratio of a whole sequence, as data.

z = l - a is the log ratio of a token, L the tokens of its sequence; A is one number for each sequence. g is
the gradient weight of each of its tokens: dL/dl = -w g, so that seq_mean_token_mean gives 1 / (B L) each.

A factor c of one token (a correction by token, over age, top_entropy) weighs the gradient of that token only:
dL/dl_t = -w c_t g_t. That is the derivative of the token form, in which the token has the term
J_t = sg(S) pi_t / sg(pi_t) A (gspo's S is s). The derivative of the sum of c_t J with a live S would weigh
every token by the mean of c over its sequence: a token over age would train, and top_entropy select nothing.
With one factor a sequence (the levels sequence and geometric, opsm, and no factor at all) both are the same.
"""

from dataclasses import dataclass
from typing import Literal

from slipstream.algorithms.spec.checks import (
    STRICT,
    Anchor,
    require_anchor,
    require_band,
    require_choice,
    require_dual_clip,
    require_positive,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo:
    """J = min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), with s = exp(mean over the sequence of z).

    g = s A, but 0 where A > 0 and s is above the band, or A < 0 and s is below it.
    Default band: [0.9997, 1.0004]: s is a geometric mean, so most sequences clip at so small a band.
    A factor of one token (a correction by token, over age, top_entropy) weighs the gradient of that token
    only, as in gspo_token.
    See Group Sequence Policy Optimization, arXiv:2507.18071.
    """

    __pydantic_config__ = STRICT

    kind: Literal["gspo"] = "gspo"
    anchor: Anchor = "rollout"
    """Whose logprobs are under the ratio."""
    clip_low: float | None = 3e-4
    """Distance from 1 down to the band's lower end, in (0, 1]; None = no lower end."""
    clip_high: float | None = 4e-4
    """Distance from 1 up to the band's upper end, above 0; None = no upper end."""
    dual_clip: float | None = None
    """Where A < 0: bound c on the ratio, as in ppo_clip; None = off."""

    def __post_init__(self) -> None:
        require_choice("gspo.kind", self.kind, ("gspo",))
        require_anchor("gspo", self.anchor)
        require_band("gspo", self.clip_low, self.clip_high)
        require_dual_clip("gspo", self.dual_clip, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class GspoToken:
    """J = min(s_t A_t, clip(s_t) A_t), with s_t = sg(s) pi_t / sg(pi_t): GSPO with an advantage per token.

    g = s A_t, but 0 where A_t > 0 and s is above the band, or A_t < 0 and s is below it.
    Default band: [0.9997, 1.0004].
    See Group Sequence Policy Optimization, arXiv:2507.18071, section 4.3.
    """

    __pydantic_config__ = STRICT

    kind: Literal["gspo_token"] = "gspo_token"
    anchor: Anchor = "rollout"
    """Whose logprobs are under the ratio."""
    clip_low: float | None = 3e-4
    """Distance from 1 down to the band's lower end, in (0, 1]; None = no lower end."""
    clip_high: float | None = 4e-4
    """Distance from 1 up to the band's upper end, above 0; None = no upper end."""
    dual_clip: float | None = None
    """Where A < 0: bound c on the ratio, as in ppo_clip; None = off."""

    def __post_init__(self) -> None:
        require_choice("gspo_token.kind", self.kind, ("gspo_token",))
        require_anchor("gspo_token", self.anchor)
        require_band("gspo_token", self.clip_low, self.clip_high)
        require_dual_clip("gspo_token", self.dual_clip, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gmpo:
    """J = S A, with S = exp(mean of z'), z' = min(z, log_clip) where A > 0 and max(z, -log_clip) elsewhere.

    g = S A, but 0 for a token whose z was cut; it still counts inside S.
    Default band of a token's ratio: [exp(-0.4), exp(0.4)] = [0.67, 1.49].
    A factor of one token (a correction by token, over age, top_entropy) weighs the gradient of that token
    only, as in gspo_token.
    See Geometric-Mean Policy Optimization, arXiv:2507.20673.
    """

    __pydantic_config__ = STRICT

    kind: Literal["gmpo"] = "gmpo"
    anchor: Anchor = "rollout"
    """Whose logprobs are under the ratio."""
    log_clip: float | None = 0.4
    """Bound on z, in nats (log space); None = no bound."""

    def __post_init__(self) -> None:
        require_choice("gmpo.kind", self.kind, ("gmpo",))
        require_anchor("gmpo", self.anchor)
        if self.log_clip is not None:
            require_positive("gmpo.log_clip (None = no bound)", self.log_clip)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rspo:
    """GMPO for mixtures of experts, with ratios scaled down by gamma where the routers moved.

    gamma = max(gamma_min, exp(-mean |log router_new - log router_old|)), a constant. Placement "before":
    z' = z + log gamma, then GMPO; "after": J = S exp(mean log gamma) A; "literal_b": gamma^sign(A) inside S,
    which amplifies drifted negative samples and is there to show it.
    Default band of a token's ratio: [exp(-0.4), exp(0.4)]. The gamma_min of the paper is not stated.
    A factor of one token (a correction by token, over age, top_entropy) weighs the gradient of that token
    only, as in gspo_token.
    See Towards Stable and Effective Reinforcement Learning for Mixture-of-Experts, arXiv:2510.23027.
    """

    __pydantic_config__ = STRICT

    kind: Literal["rspo"] = "rspo"
    anchor: Literal["batch"] = "batch"
    """Always the learner's own logprobs: only its forward pass records the routers."""
    log_clip: float | None = 0.4
    """Bound on z, in nats (log space); None = no bound."""
    gamma_min: float = 0.7
    """Least router-shift weight, in (0, 1]."""
    placement: Literal["before", "after", "literal_b"] = "before"
    """Where gamma enters."""

    def __post_init__(self) -> None:
        require_choice("rspo.kind", self.kind, ("rspo",))
        if self.anchor != "batch":
            raise ValueError(
                f"rspo.anchor: got {self.anchor!r}, needs 'batch': router logprobs of the old policy come "
                "from the learner's own forward pass"
            )
        if self.log_clip is not None:
            require_positive("rspo.log_clip (None = no bound)", self.log_clip)
        require_positive("rspo.gamma_min", self.gamma_min, at_most=1.0)
        require_choice("rspo.placement", self.placement, ("before", "after", "literal_b"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vespo:
    """J = sg(phi) A l, with phi = W^k exp(lambda (1 - W)) and W = exp(sum over the sequence of z).

    g = phi A, the same for every token of the sequence. W is a product, not a mean: it grows with length.
    phi is 1 at W = 1, largest at W = k / lambda, and vanishes at both ends; k and lambda by the sign of A.
    With the anchor batch the weights c of a tis correction are part of W: W = exp(sum of (z + log c)).
    See VESPO: Variational Sequence-Level Soft Policy Optimization, arXiv:2602.10693.
    """

    __pydantic_config__ = STRICT

    kind: Literal["vespo"] = "vespo"
    anchor: Anchor = "rollout"
    """Whose logprobs are under the ratio."""
    k_pos: float = 2.0
    """Power of W where A >= 0."""
    lambda_pos: float = 3.0
    """Decay of W where A >= 0."""
    k_neg: float = 3.0
    """Power of W where A < 0."""
    lambda_neg: float = 2.0
    """Decay of W where A < 0."""

    def __post_init__(self) -> None:
        require_choice("vespo.kind", self.kind, ("vespo",))
        require_anchor("vespo", self.anchor)
        for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg"):
            require_positive(f"vespo.{name}", getattr(self, name))
