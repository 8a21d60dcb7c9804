"""Specifications of advantages with the statistics of a group.

R is the reward of one completion, G the number of scored completions of its prompt (its group). Each of these
compares within the group, so every group needs two members or more. Equal rewards give exactly 0, except with
the ordinal ties of gopo.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from slipstream.algorithms.spec.checks import Ddof, Positive
from slipstream.algorithms.spec.kinds import AdvantageKind, Undefined

DIVIDES_BY_STD: Final = "divides by the standard deviation of each group"
RLOO_EPSILON: Final = 1e-6
"""Added to the standard deviation of a scaled rloo, in units of reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo(AdvantageKind):
    """A = (R - mean) / (std + epsilon), both over the group.

    Range: |A| <= (G - 1) / sqrt(G) with ddof 1, and <= sqrt(G - 1) with ddof 0.
    See DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models, arXiv:2402.03300.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.group:grpo"
    implementation_by_step: ClassVar[str | None] = "slipstream.algorithms.advantages.process:grpo"

    kind: Literal["grpo"] = "grpo"
    ddof: Ddof = 1
    """The standard deviation divides by G - ddof: 1 (TRL, verl) or 0 (2-GRPO: A is then +1 or -1)."""
    epsilon: Positive = 1e-6
    """Added to the standard deviation, in units of reward."""

    @property
    def scale_of_groups(self) -> str | None:
        """See `AdvantageKind`."""
        return DIVIDES_BY_STD

    @property
    def undefined_by_step(self) -> Undefined | None:
        """DeepSeekMath, arXiv:2402.03300, 4.1.3."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo(AdvantageKind):
    """A = R - mean, over the group: no division, so easy and hard prompts keep their own scale.

    Range: that of the rewards.
    See Understanding R1-Zero-Like Training: A Critical Perspective, arXiv:2503.20783.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.group:dr_grpo"

    kind: Literal["dr_grpo"] = "dr_grpo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo(AdvantageKind):
    """A = R - mean of the other completions of the group = (R - mean) G / (G - 1).

    With the scale group A is divided by the group's standard deviation (ddof 1) + 1e-6, its own reward
    included: G / (G - 1) times the advantage of grpo. Range: that of the rewards; scaled, |A| <= sqrt(G).
    See Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs,
    arXiv:2402.14740.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.group:rloo"
    implementation_by_step: ClassVar[str | None] = "slipstream.algorithms.advantages.process:rloo"

    kind: Literal["rloo"] = "rloo"
    scale: Literal["none", "group"] = "none"
    """What A is divided by: nothing (the paper), or the standard deviation of the group."""

    @property
    def scale_of_groups(self) -> str | None:
        """See `AdvantageKind`."""
        return DIVIDES_BY_STD if self.scale == "group" else None

    @property
    def undefined_by_step(self) -> Undefined | None:
        """None without a scale: PRIME, arXiv:2502.01456, defines the advantage of a step."""
        if self.scale == "none":
            return None
        return Undefined(
            reason="the standard deviation of a group of totals says nothing of single steps",
            remedy="set scale: none, or use grpo",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxRl(AdvantageKind):
    """A = (R - mean) / mean over the group where the mean is above 0, else 0; for rewards of 0 or more.

    Range: [-1, (1 - mean) / mean] for rewards in [0, 1]: hard prompts weigh most.
    See Maximum Likelihood Reinforcement Learning, arXiv:2602.02710.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.group:maxrl"

    kind: Literal["maxrl"] = "maxrl"

    @property
    def scale_of_groups(self) -> str | None:
        """See `AdvantageKind`."""
        return "divides by the mean reward of each group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opo(AdvantageKind):
    """A = R - sum(L R) / sum(L) over the group, with L the tokens of a completion: needs their lengths.

    See On-Policy RL with Optimal Reward Baseline, arXiv:2505.23585.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.group:opo"

    kind: Literal["opo"] = "opo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gopo(AdvantageKind):
    """A = high - (rank - 1) (high - low) / (G - 1), rank 1 being the best of the group and low = -high.

    With the mapping quantile A = high q(rank) / q(1), where q(rank) = Phi^-1((G + 5/8 - rank) / (G + 1/4)) is
    the standard normal quantile of a rank (Blom's scores): neighbours are far apart at the ends of the group
    and close in its middle. Ties share the mean of their advantages, so equal rewards get 0; ties "ordinal"
    gives them the order they came in, which is noise (the authors' code). Not for binary rewards. Range:
    [-2, 2] by default.
    See GOPO: Policy Optimization using Ranked Rewards, arXiv:2602.03876, and for the quantiles Statistical
    Estimates and Transformed Beta-Variables (Blom, 1958).
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.group:gopo"

    kind: Literal["gopo"] = "gopo"
    high: Positive = 2.0
    """Advantage of the best; the worst has -high, so that a group sums to 0."""
    ties: Literal["average", "ordinal"] = "average"
    """What equal rewards get."""
    mapping: Literal["linear", "quantile"] = "linear"
    """From ranks to advantages: evenly spaced (the paper), or spaced as a normal distribution's quantiles."""

    @property
    def scale_of_groups(self) -> str | None:
        """See `AdvantageKind`."""
        return "ranks the answers of each group"
