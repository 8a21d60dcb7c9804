"""Advantages with the statistics of a whole optimizer batch, as data.

The batch is that of all ranks and microbatches: compute them once, there. R is the reward of one completion;
standard deviations of a batch have ddof 1.
"""

from dataclasses import dataclass
from typing import Literal

from slipstream.algorithms.spec.checks import (
    STRICT,
    Ddof,
    Positive,
    require_boolean,
    require_choice,
    require_ranges,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScaled:
    """A = (R - mean over the group) / (standard deviation of R - mean over the batch + epsilon).

    The paper's deviation is that of R, std_of raw: differences between prompts count in it, and shrink A. See
    Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning (Lite PPO), arXiv:2508.08221.
    """

    __pydantic_config__ = STRICT

    kind: Literal["batch_scaled"] = "batch_scaled"
    epsilon: Positive = 1e-6
    """Added to the standard deviation, in units of reward."""
    center: Literal["group", "batch"] = "group"
    """Whose mean is subtracted; with batch a group of equal rewards is pushed, too (the book chapter)."""
    std_of: Literal["centred", "raw"] = "centred"
    """Whose standard deviation divides: that of R - mean, or that of R (Lite PPO in ROLL and TRL)."""

    def __post_init__(self) -> None:
        require_choice("batch_scaled.kind", self.kind, ("batch_scaled",))
        require_ranges("batch_scaled", self)
        require_choice("batch_scaled.center", self.center, ("group", "batch"))
        require_choice("batch_scaled.std_of", self.std_of, ("centred", "raw"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePp:
    """a = R - mean over the group; A = (a - mean of a) / (std of a + epsilon), both over the batch.

    With group_mean false a = R (REINFORCE++ itself; the default is its baseline variant).
    See REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization,
    arXiv:2501.03262.
    """

    __pydantic_config__ = STRICT

    kind: Literal["reinforce_pp"] = "reinforce_pp"
    epsilon: Positive = 1e-6
    """Added to the standard deviation, in units of reward."""
    group_mean: bool = True
    """Subtract the group mean first."""
    weighting: Literal["sample", "token"] = "sample"
    """What the batch statistics count: completions (length-neutral), or their tokens (verl, NeMo; needs
    lengths)."""

    def __post_init__(self) -> None:
        require_choice("reinforce_pp.kind", self.kind, ("reinforce_pp",))
        require_ranges("reinforce_pp", self)
        require_boolean("reinforce_pp.group_mean", self.group_mean)
        require_choice("reinforce_pp.weighting", self.weighting, ("sample", "token"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gdpo:
    """A_n = (r_n - mean) / (std + epsilon) over the group for each reward component n; S = sum of w_n A_n;
    A = (S - mean of S) / (std of S + epsilon) over the batch.

    A component that is constant in a group adds 0; one that a completion lacks (NaN) is left out for it.
    See GDPO: Group Reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization,
    arXiv:2601.05242.
    """

    __pydantic_config__ = STRICT

    kind: Literal["gdpo"] = "gdpo"
    epsilon: Positive = 1e-4
    """Added to each standard deviation, in units of reward."""
    ddof: Ddof = 1
    """The standard deviation of the group divides by G - ddof."""
    final_batch_norm: bool = True
    """Whiten the sum over the batch."""

    def __post_init__(self) -> None:
        require_choice("gdpo.kind", self.kind, ("gdpo",))
        require_ranges("gdpo", self)
        require_boolean("gdpo.final_batch_norm", self.final_batch_norm)
