"""The tokens of an episode: sampled turns and observations become one segment of a completion."""

from dataclasses import dataclass, field
from typing import Any

from slipstream import records


@dataclass(slots=True)
class Transcript:
    """An unfinished segment: sampled turns, and observation tokens of the environment between them.

    Invariant: a token that the policy sampled keeps the id, logprob and version of its turn.
    """

    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt before the first turn, if it is not the prompt of the group."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    spans: list[records.VersionSpan] = field(default_factory=list)
    finish_reason: records.FinishReason = records.FinishReason.LENGTH
    routed_experts: records.RoutedExperts | None = None
    top_logprobs: records.TopLogprobs | None = None
    engines: int = 1
    turn_ends: list[records.TurnEnd] = field(default_factory=list)

    def add(self, turn: records.Turn, *, number: int | None = None) -> None:
        """Append a turn that the policy sampled. `number`: turns of the episode that ended before it; None:
        those of this segment."""
        offset = len(self.token_ids)
        self.token_ids += turn.token_ids
        self.logprobs += turn.logprobs
        self.mask += [1] * len(turn.token_ids)
        for span in turn.spans:
            self._extend(span.version, offset + span.start, offset + span.end)
        self.finish_reason = turn.finish_reason
        self.engines += turn.engines - 1
        self._route(turn.routed_experts)
        first, later = self.top_logprobs, turn.top_logprobs
        self.top_logprobs = first.followed_by(later) if first and later else later or first
        ended = len(self.turn_ends) if number is None else number
        self.turn_ends.append(records.TurnEnd(number=ended, token_end=len(self.token_ids)))

    def observe(self, token_ids: tuple[int, ...]) -> None:
        """Append tokens of the environment, with mask 0, logprob 0 and the version of the turn before.

        Errors: ValueError before the first turn.
        """
        if not self.spans:
            raise ValueError("an observation needs a turn before it; put leading tokens into the prompt")
        offset = len(self.token_ids)
        self.token_ids += token_ids
        self.logprobs += [0.0] * len(token_ids)
        self.mask += [0] * len(token_ids)
        self._extend(self.spans[-1].version, offset, len(self.token_ids))

    def completion(self, later_segments: tuple[records.Segment, ...] = ()) -> records.Completion:
        """Return the finished completion of which this is the first segment, without text and rewards."""
        fields = self._fields()
        if not later_segments:  # the order of the tokens is that of sampling
            del fields["turn_ends"]
        return records.Completion(**fields, later_segments=later_segments)

    def segment(self) -> records.Segment:
        """Return the finished segment."""
        return records.Segment(**self._fields())

    def _fields(self) -> dict[str, Any]:
        return {
            "prompt_token_ids": self.prompt_token_ids,
            "token_ids": tuple(self.token_ids),
            "logprobs": tuple(self.logprobs),
            "mask": tuple(self.mask),
            "spans": tuple(self.spans),
            "finish_reason": self.finish_reason,
            "routed_experts": self.routed_experts,
            "top_logprobs": self.top_logprobs,
            "engines": self.engines,
            "turn_ends": tuple(self.turn_ends),
        }

    def _route(self, later: records.RoutedExperts | None) -> None:
        """Append the experts of a turn; tokens of earlier turns keep the experts of their own turn."""
        first = self.routed_experts
        self.routed_experts = first.followed_by(later) if first and later else later or first

    def _extend(self, version: int, start: int, end: int) -> None:
        """Append a span, merged with the last span if the version is the same."""
        if start == end:
            return
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(records.VersionSpan(version=version, start=start, end=end))
