"""What is sampled in one go: how to sample it, and the tokens that came out."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.records.completion import FinishReason, VersionSpan
from slipstream.records.logprobs import TopLogprobs
from slipstream.records.routed_experts import RoutedExperts


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one turn. No top-p or top-k: the learner normalises over the whole vocabulary."""

    temperature: float
    max_tokens: int
    top_logprobs: int = 0
    """Number of likeliest tokens to return at each position, with their logprobs."""
    seed: int | None = None
    """Seed of this request: with equal weights, equal requests sample equal tokens. None for no seed."""
    to_own_end: bool = False
    """Sample a turn to its own end even if its reader ends it before: the engine returns the routed experts
    with the last tokens only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive tokens of a turn, each with its logprob and the version that sampled it.

    Invariant: the spans tile [0, len(token_ids)); positions count from the first token of the chunk.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    spans: tuple[VersionSpan, ...] = ()
    top_logprobs: TopLogprobs | None = None
    """The likeliest tokens of each distribution that was sampled from, likeliest first, if requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Chunk):
    """All tokens that the policy sampled in one go."""

    finish_reason: FinishReason
    routed_experts: RoutedExperts | None = None
    """Experts of the prompt tokens and of all sampled tokens but the last, if the engine returns them."""
    engines: int = 1
    """Number of engines that sampled parts of it: more than 1 after the loss of a rollout."""

    def since(self, start: int) -> "Turn":
        """Return the turn without its first `start` tokens; the experts stay those of all tokens."""
        return turn_of(
            chunk_since(self, start),
            finish_reason=self.finish_reason,
            routed_experts=self.routed_experts,
            engines=self.engines,
        )

    def until(self, end: int) -> "Turn":
        """Return the turn of the first `end` tokens, which ended there: its finish reason is `stop`."""
        experts, cut = self.routed_experts, len(self.token_ids) - end
        return turn_of(
            chunk_until(self, end),
            finish_reason=FinishReason.STOP,
            routed_experts=experts.until(experts.tokens - cut) if experts is not None else None,
            engines=self.engines,
        )


def turn_of(
    chunk: Chunk,
    *,
    finish_reason: FinishReason,
    routed_experts: RoutedExperts | None = None,
    engines: int = 1,
) -> Turn:
    """Return the turn whose tokens are those of a chunk."""
    return Turn(
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        spans=chunk.spans,
        top_logprobs=chunk.top_logprobs,
        finish_reason=finish_reason,
        routed_experts=routed_experts,
        engines=engines,
    )


def chunk_since(chunk: Chunk, start: int) -> Chunk:
    """Return the tokens of a chunk from position `start` on."""
    top = chunk.top_logprobs
    return Chunk(
        token_ids=chunk.token_ids[start:],
        logprobs=chunk.logprobs[start:],
        spans=tuple(
            VersionSpan(version=span.version, start=max(span.start - start, 0), end=span.end - start)
            for span in chunk.spans
            if span.end > start
        ),
        top_logprobs=top.since(start) if top is not None and start < len(chunk.token_ids) else None,
    )


def chunk_until(chunk: Chunk, end: int) -> Chunk:
    """Return the tokens of a chunk before position `end`."""
    top = chunk.top_logprobs
    return Chunk(
        token_ids=chunk.token_ids[:end],
        logprobs=chunk.logprobs[:end],
        spans=tuple(
            VersionSpan(version=span.version, start=span.start, end=min(span.end, end))
            for span in chunk.spans
            if span.start < end
        ),
        top_logprobs=top.until(end) if top is not None and end else None,
    )


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Return consecutive chunks as one; adjacent spans of one version become one span."""
    spans: list[VersionSpan] = []
    offset = 0
    top: TopLogprobs | None = None
    for chunk in chunks:
        for span in chunk.spans:
            start = offset + span.start
            if spans and spans[-1].version == span.version:
                start = spans.pop().start
            spans.append(VersionSpan(version=span.version, start=start, end=offset + span.end))
        offset += len(chunk.token_ids)
        if chunk.top_logprobs is not None:
            top = chunk.top_logprobs if top is None else top.followed_by(chunk.top_logprobs)
    return Chunk(
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        logprobs=tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
        spans=tuple(spans),
        top_logprobs=top,
    )
