"""The reward of a completion: one named component each."""

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """The kind of a reward's result: a score, an invalid answer, or a failure (invariant 11)."""

    SCORE = "score"
    INVALID_ANSWER = "invalid_answer"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReward:
    """The score of one step of an answer. A step begins at the end of the previous step."""

    value: float
    text_end: int
    """Number of characters of the answer up to the end of the step."""
    token_end: int = 0
    """Number of tokens of its segment up to the end of the step; 0 until an actor has computed it."""
    segment: int = 0
    """Index of the segment in which the step ends, among the segments of the completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One named component of a reward vector; `value` is undefined when `outcome` is ERROR."""

    name: str
    value: float
    outcome: Outcome
    detail: str = ""
    answer: str = ""
    """The answer that the component extracted from the completion, shortened; empty if it extracts none."""
    steps: tuple[StepReward, ...] = ()
    """Scores of the steps of the answer, in order, from a component that scores steps."""
