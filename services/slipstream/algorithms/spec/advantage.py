"""Advantage estimators as data: which baseline is subtracted, and what divides the rest.

R is the reward of one completion, G the number of scored completions of its prompt (its group). All four
estimators subtract the group mean, so every group needs two members or more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from slipstream.algorithms.spec.checks import STRICT, require_choice, require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """A = (R - mean) / (std + epsilon), both over the group.

    Range: |A| <= (G - 1) / sqrt(G) with ddof 1, and <= sqrt(G - 1) with ddof 0.
    See DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models, arXiv:2402.03300.
    """

    __pydantic_config__ = STRICT

    kind: Literal["grpo"] = "grpo"
    ddof: int = 1
    """What is taken off G under the standard deviation: 1 (TRL, verl) or 0 (2-GRPO: A is then +1 or -1)."""
    epsilon: float = 1e-6
    """Added to the standard deviation, in units of reward."""

    def __post_init__(self) -> None:
        require_choice("grpo.kind", self.kind, ("grpo",))
        require_choice("grpo.ddof", self.ddof, (0, 1))
        require_positive("grpo.epsilon", self.epsilon)


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

    Range: that of the rewards.
    See Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs,
    arXiv:2402.14740.
    """

    __pydantic_config__ = STRICT

    kind: Literal["rloo"] = "rloo"

    def __post_init__(self) -> None:
        require_choice("rloo.kind", self.kind, ("rloo",))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScaled:
    """A = (R - mean over the group) / (std of the centred rewards over the batch + epsilon), with ddof 1.

    The batch is the whole optimizer batch: call it once there, before any split over ranks or microbatches.
    See Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning (Lite PPO), arXiv:2508.08221.
    """

    __pydantic_config__ = STRICT

    kind: Literal["batch_scaled"] = "batch_scaled"
    epsilon: float = 1e-6
    """Added to the standard deviation, in units of reward."""

    def __post_init__(self) -> None:
        require_choice("batch_scaled.kind", self.kind, ("batch_scaled",))
        require_positive("batch_scaled.epsilon", self.epsilon)


Advantage = Grpo | DrGrpo | Rloo | BatchScaled

ADVANTAGES: Final[Mapping[str, type[Advantage]]] = MappingProxyType(
    {
        "grpo": Grpo,
        "dr_grpo": DrGrpo,
        "rloo": Rloo,
        "batch_scaled": BatchScaled,
    }
)
