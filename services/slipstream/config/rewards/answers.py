"""Rewards that check an answer against the ground truth of its prompt, and how the answer is extracted."""

from typing import Literal

from pydantic import Field, model_validator

from slipstream.config.rewards.base import Facts, RewardSection

Place = Literal["whole", "boxed", "answer_tag", "pattern"]


class AnswerSection(RewardSection):
    """A reward of the answer in a completion. A completion without an answer is invalid, with the score 0."""

    extract: Place = "whole"
    """Where the answer stands: `whole`, the completion; `boxed`, the last \\boxed{}; `answer_tag`, the last
    <answer></answer>; `pattern`, the last match of `extract_pattern`: its first group, or all of it."""
    extract_pattern: str | None = None
    """The regular expression of `extract: pattern`; a search ends after 0.1 seconds."""

    @model_validator(mode="after")
    def pattern_where_it_is_used(self) -> "AnswerSection":
        if (self.extract == "pattern") != (self.extract_pattern is not None):
            raise ValueError("extract: pattern and extract_pattern go together; give both or neither")
        return self


class ExactMatchConfig(AnswerSection):
    """1 when the answer equals the ground truth, without the white space around both; else 0."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.matching:exact_match",
        scores="binary",
        ground_truth="answer",
        runs_in="loop",
        libraries=(),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["exact_match"] = "exact_match"
    """Name of the kind."""
    ignore_case: bool = False
    """Whether upper and lower case count as equal."""
    ignore_spaces: bool = False
    """Whether white space inside the answer is ignored."""


class NumericMatchConfig(AnswerSection):
    """1 when the answer is a number equal to the ground truth within the tolerances; else 0."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.matching:numeric_match",
        scores="binary",
        ground_truth="number",
        runs_in="loop",
        libraries=(),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["numeric_match"] = "numeric_match"
    """Name of the kind."""
    absolute_tolerance: float = Field(0.0, ge=0)
    """Largest difference to the ground truth that counts as equal."""
    relative_tolerance: float = Field(0.0, ge=0, lt=1)
    """The same as a share of the ground truth; the larger of both tolerances holds."""
    percent: Literal["fraction", "either"] = "either"
    """What an answer of 50% equals: `fraction`, only 0.5; `either`, 0.5 and 50, as in the reward `math`."""


class MathConfig(AnswerSection):
    """1 when the answer is a mathematical expression equal to the ground truth; else 0."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.math:math",
        scores="binary",
        ground_truth="expression",
        runs_in="pool",
        libraries=("sympy",),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["math"] = "math"
    """Name of the kind."""
    extract: Place = "boxed"
    """Where the answer stands, as in `exact_match`."""
    digits: int = Field(6, ge=0, le=15)
    """Decimal places to which numbers with a decimal point are compared; others are compared exactly."""
    computed: bool = True
    """Whether an answer is refused when it has an operation that the ground truth does not have: an integral,
    a sum, a limit, a determinant, or arithmetic such as 123\\cdot 456, 2^{10} or 391/17."""
    timeout_seconds: float = Field(1.0, gt=0, le=2)
    """CPU seconds for one answer; an answer that takes more is invalid."""


class CountdownConfig(RewardSection):
    """1 when the expression reaches the target with the given numbers, each at most once; else 0."""

    facts = Facts(
        scorer="slipstream.verifier.rewards.matching:countdown_reward",
        scores="binary",
        ground_truth="countdown",
        runs_in="loop",
        libraries=(),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["countdown"] = "countdown"
    """Name of the kind."""


class CodeTestsConfig(RewardSection):
    """1 when the Python program in the answer passes all tests of the prompt; else 0, or the share that pass.

    The prompt's field `tests` holds them: a JSON list of {"input", "output"} (standard input and output), of
    {"call", "args", "expected"}, or of assertions; or the assertions as a text.
    """

    facts = Facts(
        scorer="slipstream.verifier.rewards.code_tests:code_tests",
        scores="share",
        ground_truth="tests",
        runs_in="sandbox",
        libraries=(),
        sees_group=False,
        reads_lengths=False,
        scores_steps=False,
    )

    kind: Literal["code_tests"] = "code_tests"
    """Name of the kind."""
    partial_credit: bool = False
    """Whether the score is the share of tests that pass; else it is 1 only when all of them do."""
    whole_text: bool = False
    """Whether an answer without a fenced block of Python is a program as a whole; else it is invalid."""
    test_seconds: float = Field(4.0, gt=0, le=600)
    """Deadline of one test; the program is started for each."""
    timeout_seconds: float = Field(20.0, gt=0, le=3600)
    """Deadline of all tests of an answer together; tests that have not run by then fail."""
    memory_mib: int = Field(512, ge=64, le=65_536)
    """Address space of a program in MiB, with the 40 MiB of the interpreter."""
