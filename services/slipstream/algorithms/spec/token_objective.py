"""Specifications of objectives over the ratio of one token.

r = exp(l - a), where l is the current logprob and a the anchor's; A is the advantage, and sg stops the
gradient. The band of an objective is [1 - clip_low, 1 + clip_high]; None leaves that side open. g is the
gradient weight: dL/dl = -w g.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from slipstream.algorithms.spec import checks
from slipstream.algorithms.spec.invalid import InvalidPart
from slipstream.algorithms.spec.kinds import ObjectiveKind, band_at


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoClip(ObjectiveKind):
    """J = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    g = r A, but 0 where A > 0 and r is above the band, or A < 0 and r is below it.
    Default band: [0.8, 1.2].
    See Proximal Policy Optimization Algorithms, arXiv:1707.06347.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.token:ppo_clip"
    drops_outside_band: ClassVar[bool] = True
    clip_fraction_limit: ClassVar[float] = 0.2

    kind: Literal["ppo_clip"] = "ppo_clip"
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    clip_low: checks.Fraction | None = 0.2
    """Distance from 1 down to the band's lower end; null: no lower end."""
    clip_high: checks.Positive | None = 0.2
    """Distance from 1 up to the band's upper end; null: no upper end."""
    dual_clip: checks.AboveOne | None = None
    """Where A < 0: bound c on J, max(J, c A), with no gradient above the ratio c; null: off (verl takes 3).
    See Mastering Complex Control in MOBA Games with Deep Reinforcement Learning, arXiv:1912.09729."""

    def __post_init__(self) -> None:
        checks.require_fields("ppo_clip", self)
        checks.require_dual_clip("ppo_clip", self.dual_clip, self.clip_high)

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the ratio band."""
        return band_at(self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo(ObjectiveKind):
    """J = sg(clip(r, 1 - clip_low, 1 + clip_high)) A l, where sg stops the gradient.

    g = clip(r) A: a capped token keeps its gradient, only its weight stops growing.
    Default band: [0, 5]; the paper sets no lower end and does not state the upper one, ScaleRL uses 5.
    With a mask J and g are 0 where A > 0 and r > 1 + mask_high, or A < 0 and r < 1 - mask_low: the trust
    region of PPO beside the weight, the paper's unified form.
    See MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention, arXiv:2506.13585, and
    The Art of Scaling Reinforcement Learning Compute for LLMs (ScaleRL), arXiv:2510.13786.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.token:cispo"
    clip_fraction_limit: ClassVar[float] = 0.3

    kind: Literal["cispo"] = "cispo"
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    clip_low: checks.Fraction | None = None
    """Distance from 1 down to the band's lower end; null: no lower end."""
    clip_high: checks.Positive | None = 4.0
    """Distance from 1 up to the cap of the weight; null: no cap."""
    mask_low: checks.Fraction | None = None
    """Distance from 1 down to the ratio below which A < 0 has no gradient; null: no mask."""
    mask_high: checks.Positive | None = None
    """Distance from 1 up to the ratio above which A > 0 has no gradient; null: no mask."""

    @property
    def mask(self) -> tuple[float, float]:
        """Lower and upper end of the mask; (0, inf) without one."""
        low = 0.0 if self.mask_low is None else 1.0 - self.mask_low
        return low, math.inf if self.mask_high is None else 1.0 + self.mask_high

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the ratio band."""
        return band_at(self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pg(ObjectiveKind):
    """J = l A, the plain policy gradient; g = A.

    It has no ratio, so it is right only on policy: a loss with max_staleness above 0 refuses it.
    See Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning (1992).
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.token:pg"
    anchor: ClassVar[None] = None
    instead_of_a_band: ClassVar[str] = "pg has no ratio to bound; use ppo_clip or cispo"

    kind: Literal["pg"] = "pg"
    allow_uncorrected: bool = False
    """Train on stale tokens all the same, with a biased gradient."""

    def __post_init__(self) -> None:
        if not isinstance(self.allow_uncorrected, bool):
            raise InvalidPart("pg.allow_uncorrected", f"got {self.allow_uncorrected!r}, needs true or false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Is(ObjectiveKind):
    """J = r A, the importance-weighted policy gradient without a bound; g = r A.

    Band: none.
    See the surrogate L^CPI of Proximal Policy Optimization Algorithms, arXiv:1707.06347, equation 6.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.token:importance_sampling"
    instead_of_a_band: ClassVar[str] = "is has no band; use ppo_clip"

    kind: Literal["is"] = "is"
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    dual_clip: checks.AboveOne | None = None
    """Where A < 0: bound c on the ratio, as in ppo_clip; null: off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutIs(ObjectiveKind):
    """J = sg(r 1[1 - clip_low < r < 1 + clip_high]) A l.

    g = r A inside the band and 0 outside, whatever the sign of A: tokens that drifted do not train.
    Default band: [0.8, 1.2].
    See GLM-5: from Vibe Coding to Agentic Engineering, arXiv:2602.15763.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.token:rollout_is"
    drops_outside_band: ClassVar[bool] = True
    clip_fraction_limit: ClassVar[float] = 0.3

    kind: Literal["rollout_is"] = "rollout_is"
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    clip_low: checks.Fraction | None = 0.2
    """Distance from 1 down to the band's lower end; null: no lower end."""
    clip_high: checks.Positive | None = 0.2
    """Distance from 1 up to the band's upper end; null: no upper end."""

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the ratio band."""
        return band_at(self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sapo(ObjectiveKind):
    """J = (4 / tau) sigmoid(tau (r - 1)) A, with tau_pos where A > 0 and tau_neg elsewhere.

    g = r sech^2(tau (r - 1) / 2) A: a soft band around r = 1, tighter for a larger tau.
    See Soft Adaptive Policy Optimization, arXiv:2511.20347.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.token:sapo"
    instead_of_a_band: ClassVar[str] = "sapo has a soft gate, set by tau_pos and tau_neg"

    kind: Literal["sapo"] = "sapo"
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""
    tau_pos: checks.Positive = 1.0
    """Sharpness of the gate where A > 0."""
    tau_neg: checks.Positive = 1.05
    """Sharpness of the gate where A <= 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topr(ObjectiveKind):
    """J = sg(c) A l, with c = 1 where A > 0 and c = min(r, 1) elsewhere.

    g = c A: good answers are imitated in full, bad ones are pushed away only as far as they are still likely.
    See Tapered Off-Policy REINFORCE, arXiv:2503.14286; the ratio is that of the token.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.token:topr"
    instead_of_a_band: ClassVar[str] = "topr has the fixed band [0, 1]"

    kind: Literal["topr"] = "topr"
    anchor: checks.Anchor = "rollout"
    """The policy that the ratio is taken to: the one that sampled, or the learner's before the batch."""

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the band of the weight where A <= 0."""
        return 0.0, 1.0
