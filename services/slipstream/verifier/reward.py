"""The interface of a reward: it gets all answers to a prompt, and returns a verdict on each.

The child processes of the verifier and users' own rewards import this module, so it imports little.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.records import FinishReason, Outcome, Prompt, StepReward


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One completion to score. A completion that ended for its length is scored like any other."""

    text: str
    tokens: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a reward for one answer. `value` has no meaning if `outcome` is ERROR."""

    value: float
    outcome: Outcome = Outcome.SCORE
    detail: str = ""
    """The reason, for invalid answers and errors."""
    answer: str = ""
    """The part of the completion that was scored, if the reward extracts one."""
    steps: tuple[StepReward, ...] = ()
    """The scores of the steps of the answer, first to last, if the reward scores steps."""


def invalid(detail: str, *, value: float = 0.0) -> Verdict:
    """Return the verdict on an answer that cannot be read, or whose scoring exceeds a limit."""
    return Verdict(value=value, outcome=Outcome.INVALID_ANSWER, detail=detail)


def failed(detail: str) -> Verdict:
    """Return the verdict for a failure of the infrastructure. Its caller should try again (invariant 11)."""
    return Verdict(value=0.0, outcome=Outcome.ERROR, detail=detail)


def describe(error: BaseException) -> str:
    """Return the type and the message of an exception; the message alone if the exception `says_all`."""
    return str(error) if getattr(error, "says_all", False) else f"{type(error).__name__}: {error}"


class UnusableGroundTruth(ValueError):
    """The prompt has no ground truth that the reward can read.

    The caller is at fault: no answer to this prompt can be scored, now or later. `prompt_id` is empty where
    the reason names the prompt.
    """

    def __init__(self, reason: str, *, prompt_id: str = "") -> None:
        super().__init__(f"prompt {prompt_id}: {reason}" if prompt_id else reason)
        self.reason, self.prompt_id = reason, prompt_id


class Reward(Protocol):
    """One configured component of the reward vector."""

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> Sequence[Verdict]:
        """Return one verdict for each answer, in order, without blocking the event loop.

        A reward that sees groups gets all answers of the group. Another reward may get some of them, if the
        others were scored by an earlier call.

        Errors: UnusableGroundTruth refuses the whole request; any other exception makes every answer an
        Outcome.ERROR.
        """

    async def close(self) -> None:
        """Free what the reward holds. Called once, when no answer is being scored."""


RewardFunction = Callable[[Prompt, Answer], Verdict]
"""A cheap and pure function of one answer."""
