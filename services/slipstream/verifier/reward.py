"""What a reward is: it sees all answers to a prompt, and says of each a score or why there is none.

Light on purpose: the child processes of the verifier, and users' own rewards, import it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.records import FinishReason, Outcome, Prompt, StepReward


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One completion to judge; one that ended for length is judged like any other."""

    text: str
    tokens: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a reward says of one answer; `value` means nothing when `outcome` is ERROR."""

    value: float
    outcome: Outcome = Outcome.SCORE
    detail: str = ""
    """Why, in words, for invalid answers and errors."""
    answer: str = ""
    """The part of the completion that was judged, where the reward takes one out."""
    steps: tuple[StepReward, ...] = ()
    """Where the reward scores the steps of an answer: their scores, first to last."""


def invalid(detail: str, *, value: float = 0.0) -> Verdict:
    """The verdict on an answer that cannot be read, or that costs more to judge than it may."""
    return Verdict(value=value, outcome=Outcome.INVALID_ANSWER, detail=detail)


def failed(detail: str) -> Verdict:
    """No verdict: the infrastructure failed, and it is worth another try (invariant 11)."""
    return Verdict(value=0.0, outcome=Outcome.ERROR, detail=detail)


def describe(error: BaseException) -> str:
    """An exception in words: its type as well, unless its message says all (`says_all`)."""
    return str(error) if getattr(error, "says_all", False) else f"{type(error).__name__}: {error}"


class UnusableGroundTruth(ValueError):
    """The prompt lacks what the reward compares with, or it cannot be read; the message names the prompt.

    It is the caller's error: no answer to this prompt can be judged, now or later.
    """


class MissingResource(ValueError):
    """This machine lacks what a reward needs: a library, a file, a model. Another machine may have it."""


class Reward(Protocol):
    """One configured component of the reward vector."""

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> Sequence[Verdict]:
        """A verdict an answer, in order; the answers are a group: of rewards that look at one always
        all of it, of others perhaps those that are open still.

        It never blocks the loop. What it raises makes every answer an Outcome.ERROR.
        Errors: UnusableGroundTruth, which refuses the whole request.
        """

    async def close(self) -> None:
        """Let go of what it holds; called once, when no call runs."""


RewardFunction = Callable[[Prompt, Answer], Verdict]
"""A reward of one answer by itself that is pure and cheap."""
