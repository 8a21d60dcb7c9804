"""Policy objectives as data: how the ratio r of a token weighs its advantage A.

r = exp(l - a), where l is the current logprob and a the anchor's: "rollout" is the policy that sampled the
token, "batch" the learner's own logprob at the start of the optimizer batch. The band of an objective is
[1 - clip_low, 1 + clip_high]; None leaves that side open. g is the gradient weight: dL/dl = -w g.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from slipstream.algorithms.spec.checks import STRICT, require_choice, require_positive

Anchor = Literal["rollout", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoClip:
    """J = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    g = r A, but 0 where A > 0 and r is above the band, or A < 0 and r is below it.
    Default band: [0.8, 1.2].
    See Proximal Policy Optimization Algorithms, arXiv:1707.06347.
    """

    __pydantic_config__ = STRICT

    kind: Literal["ppo_clip"] = "ppo_clip"
    anchor: Anchor = "rollout"
    """Whose logprobs are under the ratio."""
    clip_low: float | None = 0.2
    """Distance from 1 down to the band's lower end, in (0, 1]; None = no lower end."""
    clip_high: float | None = 0.2
    """Distance from 1 up to the band's upper end, above 0; None = no upper end."""

    def __post_init__(self) -> None:
        require_choice("ppo_clip.kind", self.kind, ("ppo_clip",))
        _require_ratio("ppo_clip", self.anchor, self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo:
    """J = sg(clip(r, 1 - clip_low, 1 + clip_high)) A l, where sg stops the gradient.

    g = clip(r) A: a capped token keeps its gradient, only its weight stops growing.
    Default band: [0, 5]; the paper sets no lower end and does not state the upper one, ScaleRL uses 5.
    See MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention, arXiv:2506.13585, and
    The Art of Scaling Reinforcement Learning Compute for LLMs (ScaleRL), arXiv:2510.13786.
    """

    __pydantic_config__ = STRICT

    kind: Literal["cispo"] = "cispo"
    anchor: Anchor = "rollout"
    """Whose logprobs are under the ratio."""
    clip_low: float | None = None
    """Distance from 1 down to the band's lower end, in (0, 1]; None = no lower end."""
    clip_high: float | None = 4.0
    """Distance from 1 up to the cap of the weight, above 0; None = no cap."""

    def __post_init__(self) -> None:
        require_choice("cispo.kind", self.kind, ("cispo",))
        _require_ratio("cispo", self.anchor, self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pg:
    """J = l A, the plain policy gradient; g = A.

    It has no ratio, so it is right only on policy: a loss with max_staleness above 0 refuses it.
    See Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning (1992).
    """

    __pydantic_config__ = STRICT

    kind: Literal["pg"] = "pg"
    allow_uncorrected: bool = False
    """Train on stale tokens all the same, with a biased gradient."""

    def __post_init__(self) -> None:
        require_choice("pg.kind", self.kind, ("pg",))
        if not isinstance(self.allow_uncorrected, bool):
            raise ValueError(f"pg.allow_uncorrected: got {self.allow_uncorrected!r}, needs true or false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Is:
    """J = r A, the importance-weighted policy gradient without a bound; g = r A.

    Band: none.
    See the surrogate L^CPI of Proximal Policy Optimization Algorithms, arXiv:1707.06347, equation 6.
    """

    __pydantic_config__ = STRICT

    kind: Literal["is"] = "is"
    anchor: Anchor = "rollout"
    """Whose logprobs are under the ratio."""

    def __post_init__(self) -> None:
        require_choice("is.kind", self.kind, ("is",))
        require_choice("is.anchor", self.anchor, ("rollout", "batch"))


Objective = PpoClip | Cispo | Pg | Is

OBJECTIVES: Final[Mapping[str, type[Objective]]] = MappingProxyType(
    {
        "ppo_clip": PpoClip,
        "cispo": Cispo,
        "pg": Pg,
        "is": Is,
    }
)


def band(objective: Objective) -> tuple[float, float]:
    """Return the lower and upper end of the objective's ratio band; (0, inf) where it has none."""
    if not isinstance(objective, PpoClip | Cispo):
        return 0.0, math.inf
    low = 0.0 if objective.clip_low is None else 1.0 - objective.clip_low
    high = math.inf if objective.clip_high is None else 1.0 + objective.clip_high
    return low, high


def _require_ratio(kind: str, anchor: object, clip_low: object, clip_high: object) -> None:
    require_choice(f"{kind}.anchor", anchor, ("rollout", "batch"))
    if clip_low is not None:
        require_positive(f"{kind}.clip_low (None leaves the side open)", clip_low, at_most=1.0)
    if clip_high is not None:
        require_positive(f"{kind}.clip_high (None leaves the side open)", clip_high)
