"""Rewards that compare an answer with the ground truth, and where in a completion the answer stands."""

from typing import Literal

from pydantic import Field, model_validator

from slipstream.config.rewards.base import RewardSection

Place = Literal["whole", "boxed", "answer_tag", "pattern"]


class AnswerSection(RewardSection):
    """A reward that judges the answer in a completion. One that has none is an invalid answer, of value 0."""

    extract: Place = "whole"
    """Where the answer stands: the whole completion, the last \\boxed{}, the last <answer></answer>, or what
    the first group (or all) of the last match of `extract_pattern` is."""
    extract_pattern: str | None = None
    """With `extract: pattern`: a regular expression, searched for 0.1 s at most."""

    @model_validator(mode="after")
    def pattern_where_it_is_used(self) -> "AnswerSection":
        if (self.extract == "pattern") != (self.extract_pattern is not None):
            raise ValueError("extract: pattern and extract_pattern go together; give both or neither")
        return self


class ExactMatchConfig(AnswerSection):
    """1 when the answer is the ground truth, white space around it aside; else 0."""

    kind: Literal["exact_match"] = "exact_match"
    """Name of the kind."""
    ignore_case: bool = False
    """Whether upper and lower case are the same."""
    ignore_spaces: bool = False
    """Whether white space inside is of no account."""


class NumericMatchConfig(AnswerSection):
    """1 when the answer is a number equal to the ground truth within the tolerances; else 0."""

    kind: Literal["numeric_match"] = "numeric_match"
    """Name of the kind."""
    absolute_tolerance: float = Field(0.0, ge=0)
    """Largest difference that still counts as equal."""
    relative_tolerance: float = Field(0.0, ge=0, lt=1)
    """The same as a share of the ground truth; the larger of the two holds."""
    percent: Literal["fraction", "either"] = "either"
    """What 50% is equal to: only 0.5, or either of 0.5 and 50, as in the reward `math`."""


class MathConfig(AnswerSection):
    """1 when the answer is a mathematical expression equal to the ground truth; else 0."""

    kind: Literal["math"] = "math"
    """Name of the kind."""
    extract: Place = "boxed"
    """Where the answer stands, as in the other rewards; the last \\boxed{} unless it is given."""
    digits: int = Field(6, ge=0, le=15)
    """Decimals to which numbers with a decimal point are compared; all others are compared exactly."""
    computed: bool = True
    """Whether an answer is refused that leaves operations to do which the ground truth has not: an integral,
    a sum, a limit, a determinant, arithmetic of numbers such as 123\\cdot 456, 2^{10} or 391/17."""
    timeout_seconds: float = Field(1.0, gt=0, le=2)
    """Seconds of a core for one answer, beyond which it is an invalid one."""

    def longest(self, *, children: int, group_size: int) -> tuple[float, int]:
        """An answer a child."""
        return self.timeout_seconds, children
