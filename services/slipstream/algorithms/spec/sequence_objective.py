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
    AboveOne,
    Anchor,
    Fraction,
    Positive,
    require_anchor,
    require_choice,
    require_dual_clip,
    require_ranges,
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
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    clip_low: Fraction | None = 3e-4
    """Distance from 1 down to the band's lower end; null: no lower end."""
    clip_high: Positive | None = 4e-4
    """Distance from 1 up to the band's upper end; null: no upper end."""
    dual_clip: AboveOne | None = None
    """Where A < 0: bound c on the ratio, as in ppo_clip; null: off."""

    def __post_init__(self) -> None:
        require_choice("gspo.kind", self.kind, ("gspo",))
        require_anchor("gspo", self.anchor)
        require_ranges("gspo", self)
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
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    clip_low: Fraction | None = 3e-4
    """Distance from 1 down to the band's lower end; null: no lower end."""
    clip_high: Positive | None = 4e-4
    """Distance from 1 up to the band's upper end; null: no upper end."""
    dual_clip: AboveOne | None = None
    """Where A < 0: bound c on the ratio, as in ppo_clip; null: off."""

    def __post_init__(self) -> None:
        require_choice("gspo_token.kind", self.kind, ("gspo_token",))
        require_anchor("gspo_token", self.anchor)
        require_ranges("gspo_token", self)
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
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    log_clip: Positive | None = 0.4
    """Bound on z, in nats (log space); null: no bound."""

    def __post_init__(self) -> None:
        require_choice("gmpo.kind", self.kind, ("gmpo",))
        require_ranges("gmpo", self)
        require_anchor("gmpo", self.anchor)


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
    log_clip: Positive | None = 0.4
    """Bound on z, in nats (log space); null: no bound."""
    gamma_min: Fraction = 0.7
    """Least router-shift weight."""
    placement: Literal["before", "after", "literal_b"] = "before"
    """Where gamma enters."""

    def __post_init__(self) -> None:
        require_choice("rspo.kind", self.kind, ("rspo",))
        require_ranges("rspo", self)
        if self.anchor != "batch":
            raise ValueError(
                f"rspo.anchor: got {self.anchor!r}, needs 'batch': router logprobs of the old policy come "
                "from the learner's own forward pass"
            )
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
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    k_pos: Positive = 2.0
    """Power of W where A >= 0."""
    lambda_pos: Positive = 3.0
    """Decay of W where A >= 0."""
    k_neg: Positive = 3.0
    """Power of W where A < 0."""
    lambda_neg: Positive = 2.0
    """Decay of W where A < 0."""

    def __post_init__(self) -> None:
        require_choice("vespo.kind", self.kind, ("vespo",))
        require_anchor("vespo", self.anchor)
        require_ranges("vespo", self)
