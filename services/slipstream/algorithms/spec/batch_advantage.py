"""Specifications of advantages with the statistics of a whole optimizer batch.

The statistics are over all ranks and microbatches, and are computed once for the batch. R is the reward of
one completion; standard deviations of a batch have ddof 1.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from slipstream.algorithms.spec.checks import Ddof, Positive
from slipstream.algorithms.spec.kinds import AdvantageKind, Undefined


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScaled(AdvantageKind):
    """A = (R - mean over the group) / (standard deviation of R - mean over the batch + epsilon).

    The paper's deviation is that of R, std_of raw: differences between prompts count in it, and shrink A. See
    Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning (Lite PPO), arXiv:2508.08221.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.batch:batch_scaled"

    kind: Literal["batch_scaled"] = "batch_scaled"
    epsilon: Positive = 1e-6
    """Added to the standard deviation, in units of reward."""
    center: Literal["group", "batch"] = "group"
    """The rewards whose mean is subtracted; batch pushes also a group of equal rewards (the book chapter)."""
    std_of: Literal["centred", "raw"] = "centred"
    """The values whose standard deviation divides: R - mean, or R (Lite PPO in ROLL and TRL)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePp(AdvantageKind):
    """a = R - mean over the group; A = (a - mean of a) / (std of a + epsilon), both over the batch.

    With group_mean false a = R (REINFORCE++ itself; the default is its baseline variant).
    See REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization,
    arXiv:2501.03262.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.batch:reinforce_pp"
    implementation_by_step: ClassVar[str | None] = "slipstream.algorithms.advantages.process:reinforce_pp"

    kind: Literal["reinforce_pp"] = "reinforce_pp"
    epsilon: Positive = 1e-6
    """Added to the standard deviation, in units of reward."""
    group_mean: bool = True
    """Subtract the group mean first."""
    weighting: Literal["sample", "token"] = "sample"
    """What the batch statistics count: completions (length-neutral), or their tokens (verl, NeMo; needs
    lengths)."""

    @property
    def needs_groups(self) -> bool:
        """Only the baseline variant compares within a group."""
        return self.group_mean

    @property
    def undefined_by_step(self) -> Undefined | None:
        """REINFORCE++, arXiv:2501.03262: returns normalised over the tokens of a batch."""
        if not self.group_mean and self.weighting == "token":
            return None
        return Undefined(
            reason="by step its returns are normalised over the tokens of the batch, without a group's mean",
            remedy="set group_mean: false and weighting: token",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gdpo(AdvantageKind):
    """A_n = (r_n - mean) / (std + epsilon) over the group for each reward component n; S = sum of w_n A_n;
    A = (S - mean of S) / (std of S + epsilon) over the batch.

    A component that is constant in a group adds 0; one that a completion lacks (NaN) is left out for it.
    See GDPO: Group Reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization,
    arXiv:2601.05242.
    """

    implementation: ClassVar[str] = "slipstream.algorithms.advantages.batch:gdpo"

    kind: Literal["gdpo"] = "gdpo"
    epsilon: Positive = 1e-4
    """Added to each standard deviation, in units of reward."""
    ddof: Ddof = 1
    """The standard deviation of the group divides by G - ddof."""
    final_batch_norm: bool = True
    """Whiten the sum over the batch."""
