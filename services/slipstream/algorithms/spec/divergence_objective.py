"""Specifications of objectives that mask a token whose distribution has moved too far.

p = pi(y) and q = mu(y) are the probabilities of the sampled token under the current and the sampling policy,
r = p / q. The anchor is always the rollout: the trust region is around the policy that sampled.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from slipstream.algorithms.spec import checks, kinds
from slipstream.algorithms.spec.invalid import InvalidPart

Divergence = Literal["binary_tv", "binary_kl", "topk_tv", "topk_kl"]
TOP_K: Final = 20
"""Default K, that of the authors' code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dppo(kinds.ObjectiveKind):
    """J = sg(min(r, cap)) M A l, where M drops the tokens that move on from a D above its limit.

    M = 0 iff A > 0, r > 1, D > limit_high, or A < 0, r < 1, D > limit_low; g = M min(r, cap) A. D is
    a divergence of mu and pi at the token's position: binary_tv |p - q|, binary_kl
    q log(q / p) + (1 - q) log((1 - q) / (1 - p)), or the same over mu's top K tokens, the sampled one and the
    rest (topk_tv, topk_kl; rollouts bring the logprobs of those tokens with them).
    Default: D at most 0.2 (total variation) or 0.05 (KL, nats), and a cap of 5 on the ratio.
    See Rethinking the Trust Region in LLM Reinforcement Learning (DPPO), arXiv:2602.04879.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.divergence:dppo"
    anchor: ClassVar[checks.Anchor] = "rollout"
    clip_fraction_limit: ClassVar[float] = 0.3
    instead_of_a_band: ClassVar[str] = (
        "dppo bounds a divergence, by limit_low and limit_high, and the ratio by cap"
    )

    kind: Literal["dppo"] = "dppo"
    divergence: Divergence = "binary_tv"
    """How the distance of mu and pi is measured."""
    limit_low: checks.Positive | None = None
    """Largest D where the token became less likely; null: 0.2 for total variation, 0.05 for KL."""
    limit_high: checks.Positive | None = None
    """Largest D where the token became more likely; null: 0.2 for total variation, 0.05 for KL."""
    top_k: checks.Count | None = None
    """K of a topk divergence: tokens whose logprobs a run asks of the engine at each position; null: 20."""
    cap: checks.AboveOne | None = 5.0
    """Largest ratio in the weight; null: no cap (the paper's stability study)."""

    def __post_init__(self) -> None:
        checks.require_fields("dppo", self)
        if self.top_k is not None and not self.needs_top_k:
            raise InvalidPart(
                "dppo.top_k",
                f"got {self.top_k}, and {self.divergence} looks at the sampled token alone",
                remedy="leave it out, or use topk_tv or topk_kl",
            )

    @property
    def limits(self) -> tuple[float, float]:
        """Largest divergence on the low and on the high side of r = 1."""
        default = 0.2 if self.divergence.endswith("tv") else 0.05
        low = default if self.limit_low is None else self.limit_low
        return low, default if self.limit_high is None else self.limit_high

    @property
    def needs_top_k(self) -> bool:
        """Whether the batch must carry logprobs of mu's top K tokens."""
        return self.divergence.startswith("topk")

    @property
    def resolved_top_k(self) -> int:
        """Tokens of mu that the batch must carry at each position, beside the sampled one."""
        if not self.needs_top_k:
            return 0
        return TOP_K if self.top_k is None else self.top_k

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the weight's ratio."""
        return 0.0, math.inf if self.cap is None else self.cap

    @property
    def top_logprobs(self) -> int:
        """How many of the likeliest tokens of mu the divergence reads."""
        return self.resolved_top_k


@dataclass(frozen=True, slots=True, kw_only=True)
class Ipo(kinds.ObjectiveKind):
    """J = sg(r M) A l, with M = 1 where |p - q| <= limit, whatever the sign of A.

    g = M r A. Default: a total variation of at most 0.1 at the token's position. The preset ipo adds the
    drift penalty 1e-3 z^2 that prime-rl has beside it.
    See the loss `ipo` of prime-rl, https://github.com/PrimeIntellect-ai/prime-rl.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.objectives.divergence:ipo"
    anchor: ClassVar[checks.Anchor] = "rollout"
    instead_of_a_band: ClassVar[str] = "ipo bounds a divergence, by limit"

    kind: Literal["ipo"] = "ipo"
    limit: checks.Fraction = 0.1
    """Largest |p - q|."""
