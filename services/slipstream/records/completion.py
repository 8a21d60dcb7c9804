"""One sampled answer, token by token."""

from dataclasses import dataclass
from enum import Enum

from slipstream.records.logprobs import TeacherLogprobs, TopLogprobs
from slipstream.records.reward import Outcome, Reward
from slipstream.records.routed_experts import RoutedExperts


class FinishReason(Enum):
    """Why a completion ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Tokens [start, end) of a completion were sampled by policy version `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled answer. `logprobs` (nats), `mask` and the spans run parallel to `token_ids`.

    Invariant: the spans tile [0, len(token_ids)), and mask is 1 exactly where the policy sampled.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    mask: tuple[int, ...]
    spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    text: str = ""
    rewards: tuple[Reward, ...] = ()
    routed_experts: RoutedExperts | None = None
    """The experts of prompt and completion, if the engine recorded them."""
    teacher: TeacherLogprobs | None = None
    """The logprobs of a teacher, once the learner has requested them."""
    top_logprobs: TopLogprobs | None = None
    """The likeliest tokens at each position, if the objective needs them."""
    engines: int = 1
    """Number of engines that sampled parts of it: more than 1 after the loss of a rollout."""

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logprobs), len(self.mask)}
        if len(lengths) != 1:
            raise ValueError(
                f"completion: token_ids, logprobs and mask must be equally long, "
                f"got {len(self.token_ids)}, {len(self.logprobs)}, {len(self.mask)}"
            )
        if self.teacher is not None and self.teacher.tokens != len(self.token_ids):
            raise ValueError(
                f"completion: the teacher's logprobs cover {self.teacher.tokens} tokens, but there are "
                f"{len(self.token_ids)}"
            )
        if self.top_logprobs is not None and self.top_logprobs.tokens != sum(self.mask):
            raise ValueError(
                f"completion: top logprobs of {self.top_logprobs.tokens} tokens, and the policy sampled "
                f"{sum(self.mask)}"
            )
        position = 0
        for span in self.spans:
            if span.start != position or span.end <= span.start:
                raise ValueError(f"completion: spans must tile its tokens, got {self.spans}")
            position = span.end
        if position != len(self.token_ids):
            raise ValueError(
                f"completion: spans end at {position}, but there are {len(self.token_ids)} tokens"
            )

    @property
    def withheld(self) -> bool:
        """True when a reward failed. Neither a baseline nor a gradient may use such a completion."""
        return any(reward.outcome is Outcome.ERROR for reward in self.rewards)
