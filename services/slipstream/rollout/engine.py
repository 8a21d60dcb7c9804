"""What the actor needs of an engine: sample tokens, and swap weights while requests are kept."""

from dataclasses import dataclass
from typing import Protocol

from slipstream.records import FinishReason, RoutedExperts, TopLogprobs, VersionSpan
from slipstream.rpc.errors import SlipstreamError
from slipstream.weights.group import Rendezvous
from slipstream.weights.manifest import Manifest


class EngineDied(SlipstreamError):
    """The engine is gone; only a new process helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one turn. No truncation: the learner's distribution is over the whole vocabulary."""

    temperature: float
    max_tokens: int
    top_logprobs: int = 0
    """Likeliest tokens to return at each position, with their logprobs; 0 for none."""
    seed: int | None = None
    """Of this request alone: with equal weights equal requests sample equal tokens; None leaves it to
    chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Tokens that the policy sampled in one go, each with its logprob and the version that sampled it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    routed_experts: RoutedExperts | None = None
    """Of the prompt and of all sampled tokens but the last, where the engine was told to return them."""
    top_logprobs: TopLogprobs | None = None
    """Of the distributions that the tokens were sampled from, likeliest first, where they were asked for."""


class Engine(Protocol):
    """One inference engine. Between `pause` and `resume` no token is sampled and no request is lost."""

    async def sample(self, prompt_token_ids: tuple[int, ...], sampling: Sampling) -> Turn:
        """Sample one turn; cancelling the call aborts the request. Errors: EngineDied."""

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        """How likely each of the candidates is to be the next token, given that one of them is; in order.

        At temperature 1. Errors: EngineDied.
        """

    async def pause(self) -> None:
        """Stop sampling and keep running requests. Pausing a paused engine changes nothing."""

    async def form_group(self, rendezvous: Rendezvous) -> None:
        """Join the weight group of an epoch, and go on sampling meanwhile. Errors: TransferError."""

    async def receive(self, manifest: Manifest, version: int) -> None:
        """Receive and load a version, verified but not yet served. Errors: TransferError."""

    async def commit(self, version: int) -> None:
        """Label what is sampled from now on with `version`, and use no cached prefix of an older load.

        Errors: TransferError.
        """

    async def resume(self) -> None:
        """Go on sampling."""

    async def close(self) -> None:
        """End the engine and its processes."""
