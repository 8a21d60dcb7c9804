"""Specifications of objectives over the ratio of a whole sequence.

z = l - a is the log ratio of a token, L the tokens of its sequence; A is one number for each sequence. g is
the gradient weight of each of its tokens: dL/dl = -w g, so that seq_mean_token_mean gives 1 / (B L) each.

A factor c of one token (a correction by token, over age, top_entropy) weighs the gradient of that token only:
dL/dl_t = -w c_t g_t. That is the derivative of the token form, in which the token has the term
J_t = sg(S) pi_t / sg(pi_t) A (gspo's S is s). The derivative of the sum of c_t J with a live S would weigh
every token by the mean of c over its sequence: a token over age would train, and top_entropy select nothing.
With one factor a sequence (the levels sequence and geometric, opsm, and no factor at all) both are the same.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from slipstream.algorithms.spec import checks, kinds
from slipstream.algorithms.spec.invalid import InvalidPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo(kinds.ObjectiveKind):
    """J = min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), with s = exp(mean over the sequence of z).

    g = s A, but 0 where A > 0 and s is above the band, or A < 0 and s is below it.
    Default band: [0.9997, 1.0004]: s is a geometric mean, so most sequences clip at so small a band.
    A factor of one token (a correction by token, over age, top_entropy) weighs the gradient of that token
    only, as in gspo_token.
    See Group Sequence Policy Optimization, arXiv:2507.18071.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.sequence:gspo"
    one_advantage_per_sequence: ClassVar[bool] = True
    drops_outside_band: ClassVar[bool] = True
    clip_fraction_limit: ClassVar[float] = 0.4

    kind: Literal["gspo"] = "gspo"
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    clip_low: checks.Fraction | None = 3e-4
    """Distance from 1 down to the band's lower end; null: no lower end."""
    clip_high: checks.Positive | None = 4e-4
    """Distance from 1 up to the band's upper end; null: no upper end."""
    dual_clip: checks.AboveOne | None = None
    """Where A < 0: bound c on the ratio, as in ppo_clip; null: off."""

    def __post_init__(self) -> None:
        checks.require_fields("gspo", self)
        checks.require_dual_clip("gspo", self.dual_clip, self.clip_high)

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the ratio band."""
        return kinds.band_at(self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class GspoToken(kinds.ObjectiveKind):
    """J = min(s_t A_t, clip(s_t) A_t), with s_t = sg(s) pi_t / sg(pi_t): GSPO with an advantage per token.

    g = s A_t, but 0 where A_t > 0 and s is above the band, or A_t < 0 and s is below it.
    Default band: [0.9997, 1.0004].
    See Group Sequence Policy Optimization, arXiv:2507.18071, section 4.3.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.sequence:gspo"
    drops_outside_band: ClassVar[bool] = True
    clip_fraction_limit: ClassVar[float] = 0.4

    kind: Literal["gspo_token"] = "gspo_token"
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    clip_low: checks.Fraction | None = 3e-4
    """Distance from 1 down to the band's lower end; null: no lower end."""
    clip_high: checks.Positive | None = 4e-4
    """Distance from 1 up to the band's upper end; null: no upper end."""
    dual_clip: checks.AboveOne | None = None
    """Where A < 0: bound c on the ratio, as in ppo_clip; null: off."""

    def __post_init__(self) -> None:
        checks.require_fields("gspo_token", self)
        checks.require_dual_clip("gspo_token", self.dual_clip, self.clip_high)

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the ratio band."""
        return kinds.band_at(self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gmpo(kinds.ObjectiveKind):
    """J = S A, with S = exp(mean of z'), z' = min(z, log_clip) where A > 0 and max(z, -log_clip) elsewhere.

    g = S A, but 0 for a token whose z was cut; it still counts inside S.
    Default band of a token's ratio: [exp(-0.4), exp(0.4)] = [0.67, 1.49].
    A factor of one token (a correction by token, over age, top_entropy) weighs the gradient of that token
    only, as in gspo_token.
    See Geometric-Mean Policy Optimization, arXiv:2507.20673.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.sequence:gmpo"
    one_advantage_per_sequence: ClassVar[bool] = True
    drops_outside_band: ClassVar[bool] = True
    clip_fraction_limit: ClassVar[float] = 0.4
    instead_of_a_band: ClassVar[str] = "gmpo bounds the logarithm of the ratio, by log_clip"

    kind: Literal["gmpo"] = "gmpo"
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    log_clip: checks.Positive | None = 0.4
    """Bound on z, in nats (log space); null: no bound."""

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the band of a token's ratio."""
        bound = math.inf if self.log_clip is None else self.log_clip
        return math.exp(-bound), math.exp(bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rspo(kinds.ObjectiveKind):
    """GMPO for mixtures of experts, with ratios scaled down by gamma where the routers moved.

    gamma = max(gamma_min, exp(-mean |log router_new - log router_old|)), a constant. Placement "before":
    z' = z + log gamma, then GMPO; "after": J = S exp(mean log gamma) A; "literal_b": gamma^sign(A) inside S,
    which amplifies drifted negative samples and is there to show it.
    Default band of a token's ratio: [exp(-0.4), exp(0.4)]. The gamma_min of the paper is not stated.
    A factor of one token (a correction by token, over age, top_entropy) weighs the gradient of that token
    only, as in gspo_token.
    See Towards Stable and Effective Reinforcement Learning for Mixture-of-Experts, arXiv:2510.23027.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.sequence:rspo"
    one_advantage_per_sequence: ClassVar[bool] = True
    drops_outside_band: ClassVar[bool] = True
    clip_fraction_limit: ClassVar[float] = 0.4
    instead_of_a_band: ClassVar[str] = "rspo bounds the logarithm of the ratio, by log_clip"

    kind: Literal["rspo"] = "rspo"
    anchor: Literal["batch"] = "batch"
    """Always the learner's own logprobs: only its forward pass records the routers."""
    log_clip: checks.Positive | None = 0.4
    """Bound on z, in nats (log space); null: no bound."""
    gamma_min: checks.Fraction = 0.7
    """Least router-shift weight."""
    placement: Literal["before", "after", "literal_b"] = "before"
    """Whether gamma scales the ratio before or after the clip; `literal_b`: after, as gamma^sign(A)."""

    def __post_init__(self) -> None:
        if self.anchor != "batch":
            raise InvalidPart(
                "rspo.anchor",
                f"got {self.anchor!r}, needs 'batch': router logprobs of the old policy come "
                "from the learner's own forward pass",
            )
        checks.require_fields("rspo", self)

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the band of a token's ratio."""
        bound = math.inf if self.log_clip is None else self.log_clip
        return math.exp(-bound), math.exp(bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vespo(kinds.ObjectiveKind):
    """J = sg(phi) A l, with phi = W^k exp(lambda (1 - W)) and W = exp(sum over the sequence of z).

    g = phi A, the same for every token of the sequence. W is a product, not a mean: it grows with length.
    phi is 1 at W = 1, largest at W = k / lambda, and vanishes at both ends; k and lambda by the sign of A.
    With the anchor batch the weights c of a tis correction are part of W: W = exp(sum of (z + log c)).
    See VESPO: Variational Sequence-Level Soft Policy Optimization, arXiv:2602.10693.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.sequence:vespo"
    one_advantage_per_sequence: ClassVar[bool] = True
    instead_of_a_band: ClassVar[str] = "vespo has a kernel, set by k_pos, lambda_pos, k_neg and lambda_neg"

    kind: Literal["vespo"] = "vespo"
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    k_pos: checks.Positive = 2.0
    """Power of W where A >= 0."""
    lambda_pos: checks.Positive = 3.0
    """Decay of W where A >= 0."""
    k_neg: checks.Positive = 3.0
    """Power of W where A < 0."""
    lambda_neg: checks.Positive = 2.0
    """Decay of W where A < 0."""
