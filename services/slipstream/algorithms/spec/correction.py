"""Specifications of corrections for stale data: weights and masks of the policy loss, never of KL or entropy.

rho = prox / mu is the ratio of the learner's policy at the start of the optimizer batch to the one that
sampled. With the anchor "rollout" the ratio of the objective contains rho, so every correction by rho
needs the anchor "batch". A correction is a constant c: g becomes c g. The normaliser counts what it drops.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from slipstream.algorithms.spec.checks import Cap, Fraction, Positive, Range, require_fields
from slipstream.algorithms.spec.invalid import InvalidPart
from slipstream.algorithms.spec.kinds import CorrectionKind, built_in

Level = Literal["token", "sequence", "geometric"]
"""Ratio of a token, product over its sequence, or geometric mean over its sequence."""

UpperEnd = Annotated[float, Range(at_least=1, reason="or on-policy tokens would not train")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tis(CorrectionKind):
    """Truncated importance sampling: c = min(rho, cap).

    A product over a sequence grows with its length: prefer the level token.
    See Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (Yao et al., 2025), and
    IMPALA, arXiv:1802.01561, for the truncation.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.corrections:tis"
    weighs: ClassVar[bool] = True

    kind: Literal["tis"] = "tis"
    level: Level = "token"
    """Whether rho is of a token, the product over a sequence, or the geometric mean over it."""
    cap: Cap = 2.0
    """Largest weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mis(CorrectionKind):
    """Masked importance sampling: c = rho where low <= rho <= high, and 0 elsewhere.

    A product over a sequence is nearly always outside for long ones: prefer the level geometric.
    See When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch
    (Liu et al., 2025).
    """

    implementation: ClassVar[str] = "slipstream.algorithms.corrections:mis"
    weighs: ClassVar[bool] = True

    kind: Literal["mis"] = "mis"
    level: Level = "geometric"
    """Whether rho is of a token, the product over a sequence, or the geometric mean over it."""
    low: Fraction | None = 0.5
    """Smallest rho that trains; null: 0 (the book chapter's one-sided mask)."""
    high: UpperEnd = 2.0
    """Largest rho that trains."""
    mask_weight: Literal["ratio", "one"] = "ratio"
    """The weight inside: rho, or 1 (the book chapter's bare indicator)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IcePop(CorrectionKind):
    """c = rho of the token where low <= rho <= high, and 0 elsewhere: masked importance sampling by token.

    See Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale Thinking Model (Ring-1T),
    arXiv:2510.18855.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.corrections:icepop"
    weighs: ClassVar[bool] = True

    kind: Literal["icepop"] = "icepop"
    low: Fraction | None = 0.5
    """Smallest rho that trains; null: 0."""
    high: UpperEnd = 5.0
    """Largest rho that trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricRejection(CorrectionKind):
    """A sequence trains iff low <= exp(mean log rho) <= high; its tokens then carry c = min(rho, cap).

    Default: [0.999, 1.001], for dense models; mixtures of experts take [0.99, 1.01].
    See When Speed Kills Stability (Liu et al., 2025). With cap null it is the seq-mask-tis of OpenRLHF and
    NeMo RL, which do not truncate; a mean near 1 does not bound the ratio of one token.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.corrections:geometric_rejection"
    weighs: ClassVar[bool] = True

    kind: Literal["geometric_rejection"] = "geometric_rejection"
    low: Fraction | None = 0.999
    """Smallest geometric mean that trains; null: 0."""
    high: UpperEnd = 1.001
    """Largest geometric mean that trains."""
    cap: Cap | None = 2.0
    """Largest weight of a token that trains; null: no cap."""
    mask_weight: Literal["ratio", "one"] = "ratio"
    """The weight of a token that trains: its rho up to the cap, or 1 whatever the cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class M2po(CorrectionKind):
    """Bound the second moment of the log ratio by dropping the tokens that drifted furthest.

    Scope "harmful" (the authors' code): tau is the largest bound for which the mean of min(|z|, tau)^2 over
    the harmful tokens (A > 0, r > 1 or A < 0, r < 1; z = l - mu) is at most threshold; a harmful token is
    dropped where r is above 1 + max(e^tau - 1, clip_high) or below 1 - max(1 - e^-tau, clip_low). Scope "all"
    (AReaL): the tokens with the largest (log rho)^2 are dropped, whatever A, until the mean is below it.
    See Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?,
    arXiv:2510.01161.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.corrections:m2po"

    kind: Literal["m2po"] = "m2po"
    threshold: Positive = 0.04
    """Largest mean of z^2, in nats^2."""
    scope: Literal["harmful", "all"] = "harmful"
    """Which tokens count and may be dropped."""
    clip_low: Fraction = 0.3
    """For harmful: a ratio above 1 - clip_low is never dropped."""
    clip_high: Positive = 0.5
    """For harmful: a ratio below 1 + clip_high is never dropped."""

    @property
    def needs_batch_anchor(self) -> bool:
        """Only the scope "all" reads rho."""
        return self.scope == "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opsm(CorrectionKind):
    """Off-policy sequence masking: a sequence is dropped iff A < 0 and mean(log mu - l) > delta.

    See DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models, arXiv:2512.02556, equation 9.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.corrections:opsm"
    reads: ClassVar[Literal["rho", "drift"]] = "drift"

    kind: Literal["opsm"] = "opsm"
    delta: Positive = 0.5
    """Largest mean drift of a sequence with a negative advantage, in nats per token (slime takes 1e-4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierTokens(CorrectionKind):
    """A sequence is dropped where the ratio pi / mu of any of its tokens is below low or above high.

    It catches what a mean over the sequence hides: a token that one of the two policies all but excludes.
    See the outlier token mask of SkyRL, https://github.com/NovaSky-AI/SkyRL, whose ratio is prox / mu, equal
    to this one before the first update of a batch.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.corrections:outlier_tokens"
    reads: ClassVar[Literal["rho", "drift"]] = "drift"

    kind: Literal["outlier_tokens"] = "outlier_tokens"
    low: Fraction | None = 1e-4
    """Smallest ratio of a token of a sequence that trains; null: 0."""
    high: UpperEnd | None = 100.0
    """Largest ratio of a token of a sequence that trains; null: no upper end."""

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise InvalidPart(
                "outlier_tokens.low", "got None, as high, which drops nothing", remedy="needs one of the two"
            )
        require_fields("outlier_tokens", self)


Correction = Tis | Mis | IcePop | GeometricRejection | M2po | Opsm | OutlierTokens

CORRECTIONS: Final[Mapping[str, type[Correction]]] = built_in(Correction)
