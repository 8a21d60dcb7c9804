"""Advantages with the statistics of a group, as data.

R is the reward of one completion, G the number of scored completions of its prompt (its group). Each of these
compares within the group, so every group needs two members or more, and equal rewards give exactly 0.
"""

from dataclasses import dataclass
from typing import Final, Literal

from slipstream.algorithms.spec.checks import STRICT, Ddof, Positive, require_choice, require_ranges

RLOO_EPSILON: Final = 1e-6
"""Added to the standard deviation of a scaled rloo, in units of reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """A = (R - mean) / (std + epsilon), both over the group.

    Range: |A| <= (G - 1) / sqrt(G) with ddof 1, and <= sqrt(G - 1) with ddof 0.
    See DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models, arXiv:2402.03300.
    """

    __pydantic_config__ = STRICT

    kind: Literal["grpo"] = "grpo"
    ddof: Ddof = 1
    """The standard deviation divides by G - ddof: 1 (TRL, verl) or 0 (2-GRPO: A is then +1 or -1)."""
    epsilon: Positive = 1e-6
    """Added to the standard deviation, in units of reward."""

    def __post_init__(self) -> None:
        require_choice("grpo.kind", self.kind, ("grpo",))
        require_ranges("grpo", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo:
    """A = R - mean, over the group: no division, so easy and hard prompts keep their own scale.

    Range: that of the rewards.
    See Understanding R1-Zero-Like Training: A Critical Perspective, arXiv:2503.20783.
    """

    __pydantic_config__ = STRICT

    kind: Literal["dr_grpo"] = "dr_grpo"

    def __post_init__(self) -> None:
        require_choice("dr_grpo.kind", self.kind, ("dr_grpo",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo:
    """A = R - mean of the other completions of the group = (R - mean) G / (G - 1).

    With the scale group A is divided by the group's standard deviation (ddof 1) + 1e-6, its own reward
    included: G / (G - 1) times the advantage of grpo. Range: that of the rewards; scaled, |A| <= sqrt(G).
    See Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs,
    arXiv:2402.14740.
    """

    __pydantic_config__ = STRICT

    kind: Literal["rloo"] = "rloo"
    scale: Literal["none", "group"] = "none"
    """What A is divided by: nothing (the paper), or the standard deviation of the group."""

    def __post_init__(self) -> None:
        require_choice("rloo.kind", self.kind, ("rloo",))
        require_choice("rloo.scale", self.scale, ("none", "group"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxRl:
    """A = (R - mean) / mean over the group where the mean is above 0, else 0; for rewards of 0 or more.

    Range: [-1, (1 - mean) / mean] for rewards in [0, 1]: hard prompts weigh most.
    See Maximum Likelihood Reinforcement Learning, arXiv:2602.02710.
    """

    __pydantic_config__ = STRICT

    kind: Literal["maxrl"] = "maxrl"

    def __post_init__(self) -> None:
        require_choice("maxrl.kind", self.kind, ("maxrl",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Opo:
    """A = R - sum(L R) / sum(L) over the group, with L the tokens of a completion: needs their lengths.

    See On-Policy RL with Optimal Reward Baseline, arXiv:2505.23585.
    """

    __pydantic_config__ = STRICT

    kind: Literal["opo"] = "opo"

    def __post_init__(self) -> None:
        require_choice("opo.kind", self.kind, ("opo",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gopo:
    """A = high - (rank - 1) (high - low) / (G - 1), rank 1 being the best of the group and low = -high.

    With the mapping quantile A = high q(rank) / q(1), where q(rank) = Phi^-1((G + 5/8 - rank) / (G + 1/4)) is
    the standard normal quantile of a rank (Blom's scores): neighbours are far apart at the ends of the group
    and close in its middle. Ties share the mean of their advantages, so equal rewards get 0; ties "ordinal"
    gives them the order they came in, which is noise (the authors' code). Not for binary rewards. Range:
    [-2, 2] by default.
    See GOPO: Policy Optimization using Ranked Rewards, arXiv:2602.03876, and for the quantiles Statistical
    Estimates and Transformed Beta-Variables (Blom, 1958).
    """

    __pydantic_config__ = STRICT

    kind: Literal["gopo"] = "gopo"
    high: Positive = 2.0
    """Advantage of the best; the worst has -high, so that a group sums to 0."""
    ties: Literal["average", "ordinal"] = "average"
    """What equal rewards get."""
    mapping: Literal["linear", "quantile"] = "linear"
    """From ranks to advantages: evenly spaced (the paper), or spaced as a normal distribution's quantiles."""

    def __post_init__(self) -> None:
        require_choice("gopo.kind", self.kind, ("gopo",))
        require_ranges("gopo", self)
        require_choice("gopo.ties", self.ties, ("average", "ordinal"))
        require_choice("gopo.mapping", self.mapping, ("linear", "quantile"))
