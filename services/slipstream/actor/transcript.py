"""The tokens of an episode: sampled turns and observations become one completion."""

from dataclasses import dataclass, field

from slipstream.records import (
    Completion,
    FinishReason,
    RoutedExperts,
    TopLogprobs,
    Turn,
    VersionSpan,
)


@dataclass(slots=True)
class Transcript:
    """An unfinished completion: sampled turns, and observation tokens of the environment between them.

    Invariant: a token that the policy sampled keeps the id, logprob and version of its turn.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.LENGTH
    routed_experts: RoutedExperts | None = None
    top_logprobs: TopLogprobs | None = None
    engines: int = 1

    def add(self, turn: Turn) -> None:
        """Append a turn that the policy sampled."""
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

    def completion(self) -> Completion:
        """Return the finished completion, without text and rewards."""
        return Completion(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            mask=tuple(self.mask),
            spans=tuple(self.spans),
            finish_reason=self.finish_reason,
            routed_experts=self.routed_experts,
            top_logprobs=self.top_logprobs,
            engines=self.engines,
        )

    def _route(self, later: RoutedExperts | None) -> None:
        """Append the experts of a turn; tokens of earlier turns keep the experts of their own turn."""
        first = self.routed_experts
        self.routed_experts = first.followed_by(later) if first and later else later or first

    def _extend(self, version: int, start: int, end: int) -> None:
        """Append a span, merged with the last span if the version is the same."""
        if start == end:
            return
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(version=version, start=start, end=end))
