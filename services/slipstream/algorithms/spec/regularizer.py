"""Specifications of regularisers: terms of the policy loss, and penalties in the reward.

d = l - ref is the log ratio to the reference policy. Each term is aggregated with the weights of the policy
loss and is never multiplied by a correction.
"""

from dataclasses import dataclass
from typing import Final, Literal

from slipstream.algorithms.spec import checks
from slipstream.algorithms.spec.invalid import InvalidPart

KL_CAP: Final = 5.0
"""Largest ratio in k3_unbiased unless a run says otherwise: that of cispo and dppo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kl:
    """coefficient × an estimate of the KL divergence to the reference policy.

    k1 = d, k2 = d^2 / 2, k3 = e^-d - 1 + d, k3_unbiased = min(r, cap) k3 with the ratio r to the objective's
    anchor. Gradient of the loss term: k2 d, k3 1 - e^-d, k3_unbiased min(r, cap) d: unbiased but for the
    tokens above the cap, without which one stale token can outweigh a batch. In the loss k1 has an expected
    gradient of 0, and in the reward anything but k1 is biased: both pairs are refused.
    See Approximating KL Divergence (Schulman, 2020), and for k3_unbiased DeepSeek-V3.2, arXiv:2512.02556.
    """

    __pydantic_config__ = checks.STRICT

    coefficient: checks.Positive
    """Factor of the term: 0.04 in GRPO, 0.001 in R1."""
    estimator: Literal["k1", "k2", "k3", "k3_unbiased"] | None = None
    """The estimate of the divergence; null: k3_unbiased in the loss, k1 in the reward."""
    placement: Literal["loss", "reward"] = "loss"
    """loss: a term with gradient. reward: the sum of k1 over a completion is taken off its reward."""
    cap: checks.Cap | None = None
    """Largest ratio in k3_unbiased; null: 5. No other estimator has a ratio."""

    def __post_init__(self) -> None:
        checks.require_fields("kl", self)
        if self.placement == "loss" and self.estimator == "k1":
            raise InvalidPart(
                "kl.estimator",
                "got 'k1' in the loss, where its expected gradient is 0",
                remedy="use k3_unbiased, k2 or k3, or placement: reward",
            )
        if self.placement == "reward" and self.estimator not in (None, "k1"):
            raise InvalidPart(
                "kl.estimator",
                f"got {self.estimator!r} in the reward, where its gradient is not that of the divergence",
                remedy="use k1, or placement: loss",
            )
        if self.cap is not None and not self.has_ratio:
            raise InvalidPart(
                "kl.cap",
                f"got {self.cap!r}, and {self.resolved_estimator} has no ratio that it would bound",
                remedy="leave it out, or use k3_unbiased",
            )

    @property
    def resolved_estimator(self) -> Literal["k1", "k2", "k3", "k3_unbiased"]:
        """The estimator, with the default of the placement filled in."""
        return self.estimator or ("k1" if self.placement == "reward" else "k3_unbiased")

    @property
    def has_ratio(self) -> bool:
        """Whether the estimator weighs a token by its ratio to the objective's anchor."""
        return self.resolved_estimator == "k3_unbiased"

    @property
    def resolved_cap(self) -> float | None:
        """Largest ratio, with the default filled in; None for an estimator without a ratio."""
        return (KL_CAP if self.cap is None else self.cap) if self.has_ratio else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftPenalty:
    """coefficient × z^2, z = l - mu: holds the policy near the one that sampled. Gradient 2 coefficient z.

    With level sequence z is the log ratio of the whole completion, the sum over its tokens: each of its L
    tokens has the term coefficient z^2 / L and the gradient 2 coefficient z. It is not a KL to a reference.
    See Kimi K2.5, arXiv:2602.02276; prime-rl takes 1e-3. By sequence: Kimi k1.5, arXiv:2501.12599.
    """

    __pydantic_config__ = checks.STRICT

    coefficient: checks.Positive = 1e-3
    """Factor of the penalty in the loss."""
    level: Literal["token", "sequence"] = "token"
    """The unit whose log ratio is squared."""

    def __post_init__(self) -> None:
        checks.require_fields("drift_penalty", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entropy:
    """L -= coefficient × mean over the batch's tokens of the exact entropy H (always a token mean).

    With a target the coefficient adapts: after each step it rises by step where the mean H <= target and
    falls by step elsewhere, within [0, largest], and the bonus counts only where H <= target.
    See Skywork Open Reasoner 1 Technical Report, arXiv:2505.22312, for the adaptive form.
    """

    __pydantic_config__ = checks.STRICT

    coefficient: checks.NotNegative
    """Factor of the bonus; with a target, the initial one, which may be 0."""
    target: checks.Positive | None = None
    """Mean entropy to hold, in nats per token; null: a constant coefficient."""
    step: checks.Positive = 0.005
    """Change of an adaptive coefficient after each step."""
    largest: checks.Positive = 0.1
    """Largest adaptive coefficient; without it, a target that cannot be reached would raise it for ever."""

    def __post_init__(self) -> None:
        checks.require_fields("entropy", self)
        if self.target is None:
            checks.require_positive("entropy.coefficient", self.coefficient)
        if self.target is not None and self.coefficient > self.largest:
            raise InvalidPart(
                "entropy.largest",
                f"got {self.largest!r}, needs at least the coefficient that it starts from, "
                f"{self.coefficient!r}",
            )
