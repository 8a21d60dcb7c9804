"""Rewards that run a program from the answer."""

from typing import Literal

from pydantic import Field

from slipstream.config.rewards.base import Facts, RewardSection


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
