"""Environments: each turns one lease into one completion. `single_turn` is the only one so far.

A multi-turn environment would call `sample` again, with the prompt and all tokens so far, and would add its
observation tokens between the turns with `Episode.observe`. No other code would change.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.records import (
    Completion,
    FinishReason,
    Prompt,
    RoutedExperts,
    TopLogprobs,
    Turn,
    VersionSpan,
)

Sample = Callable[[tuple[int, ...]], Awaitable[Turn]]


class Environment(Protocol):
    """Makes one completion of a prompt; called once for each member of a group, concurrently."""

    async def run(self, prompt: Prompt, prompt_token_ids: tuple[int, ...], sample: Sample) -> Completion:
        """Sample one completion. Errors: those of `sample`."""


class SingleTurn:
    """One prompt, one answer."""

    async def run(self, prompt: Prompt, prompt_token_ids: tuple[int, ...], sample: Sample) -> Completion:
        """See Environment."""
        episode = Episode()
        episode.add(await sample(prompt_token_ids))
        return episode.completion()


@dataclass(slots=True)
class Episode:
    """An unfinished completion: sampled turns, and observation tokens of the environment between them."""

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


ENVIRONMENTS: dict[str, type[Environment]] = {"single_turn": SingleTurn}
