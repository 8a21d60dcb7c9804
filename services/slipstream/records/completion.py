"""One sampled answer, token by token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from slipstream.records.logprobs import TeacherLogprobs, TopLogprobs
from slipstream.records.reward import Outcome, Reward
from slipstream.records.routed_experts import RoutedExperts

NO_VERSION = -1
"""No policy version: that of a rollout that has not served any."""


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
class TurnEnd:
    """A turn of a segment: the tokens sampled after the turn before it, up to `token_end`."""

    number: int
    """Number of turns of the whole completion that ended before this one."""
    token_end: int
    """Number of tokens of the segment up to the end of the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens after one prompt. `logprobs` (nats), `mask` and the spans run parallel to `token_ids`.

    Invariant: the spans tile [0, len(token_ids)), and mask is 1 exactly where the policy sampled.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    mask: tuple[int, ...]
    spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt that the engine saw, if it is not the prompt of the group."""
    routed_experts: RoutedExperts | None = None
    """The experts of prompt and tokens, if the engine recorded them."""
    teacher: TeacherLogprobs | None = None
    """The logprobs of a teacher, once the learner has requested them."""
    top_logprobs: TopLogprobs | None = None
    """The likeliest tokens at each position, if the objective needs them."""
    engines: int = 1
    """Number of engines that sampled parts of it: more than 1 after the loss of a rollout."""
    turn_ends: tuple[TurnEnd, ...] = ()
    """The turns of the segment, in order. Only a completion of several segments has them, because there the
    order of the tokens is not the order in which they were sampled."""

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
        ends = [turn.token_end for turn in self.turn_ends]
        if ends != sorted(ends) or max(ends, default=0) > len(self.token_ids):
            raise ValueError(
                f"completion: turns end at the tokens {ends}; they must not fall, and there are "
                f"{len(self.token_ids)} tokens"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Segment):
    """One answer: a member of a group.

    Its own tokens are the first segment. An agent that rewrites its history, or that has sub-agents, samples
    further segments with prompts of their own. All segments train with the reward of the completion.
    `finish_reason` is that of the completion as a whole.
    """

    text: str = ""
    rewards: tuple[Reward, ...] = ()
    later_segments: tuple[Segment, ...] = ()

    @property
    def withheld(self) -> bool:
        """True when a reward failed. Neither a baseline nor a gradient may use such a completion."""
        return any(reward.outcome is Outcome.ERROR for reward in self.rewards)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, in the order in which they began."""
        return (self, *self.later_segments)

    @property
    def is_one_answer(self) -> bool:
        """Whether it is one segment after the prompt of the group, and not several conversations."""
        return not self.later_segments and self.prompt_token_ids is None

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled, in all segments."""
        return sum(sum(segment.mask) for segment in self.segments)

    @property
    def tokens(self) -> int:
        """Number of tokens in all segments, those of environments included; prompts are not counted."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def versions(self) -> frozenset[int]:
        """The policy versions that sampled its tokens."""
        return frozenset(span.version for segment in self.segments for span in segment.spans)

    @property
    def content(self) -> tuple[tuple[tuple[int, ...] | None, tuple[int, ...]], ...]:
        """Prompt and tokens of each segment: equal for two members of a group that say the same."""
        return tuple((segment.prompt_token_ids, segment.token_ids) for segment in self.segments)

    def with_segments(self, segments: Sequence[Segment]) -> "Completion":
        """Return the completion with other segments; the first of them must be a completion."""
        first, *later = segments
        assert isinstance(first, Completion), "the first segment is the completion itself"
        return replace(first, later_segments=tuple(later))


def sampling_order(completion: Completion) -> list[Sequence[int]]:
    """Return for each segment the index of each of its sampled tokens among all sampled tokens of the
    completion, in the order of sampling.

    A turn of one segment may lie between two turns of another. Segments without turns follow one another.
    """
    order: list[list[int]] = [[] for _ in completion.segments]
    position = 0
    for _, segment, sampled in sorted(_turns(completion)):
        order[segment] += range(position, position + sampled)
        position += sampled
    return list(order)


def _turns(completion: Completion) -> Iterator[tuple[int, int, int]]:
    """Yield number, segment and sampled tokens of each turn, and of what is left behind the last turns."""
    after_all = 1 + max((t.number for s in completion.segments for t in s.turn_ends), default=0)
    for index, segment in enumerate(completion.segments):
        start = 0
        for turn in segment.turn_ends:
            yield turn.number, index, sum(segment.mask[start : turn.token_end])
            start = turn.token_end
        yield after_all, index, sum(segment.mask[start:])
