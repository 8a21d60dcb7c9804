"""The reward of a completion: one named component each."""

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """What a reward function said: a score, an invalid answer, or nothing at all (invariant 11)."""

    SCORE = "score"
    INVALID_ANSWER = "invalid_answer"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReward:
    """The score of one step of an answer; a step begins where the one before it ends."""

    value: float
    text_end: int
    """Characters of the answer up to the end of the step."""
    token_end: int = 0
    """Tokens of the completion up to the end of the step; 0 until a rollout has found them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One named component of a reward vector; `value` means nothing when `outcome` is ERROR."""

    name: str
    value: float
    outcome: Outcome
    detail: str = ""
    answer: str = ""
    """The part of the completion that was judged, where the component takes one out; shortened."""
    steps: tuple[StepReward, ...] = ()
    """Where the component scores the steps of an answer: their scores, first to last."""
