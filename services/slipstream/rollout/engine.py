"""The interface of an inference engine: sample tokens, and swap weights while requests wait."""

from dataclasses import dataclass
from typing import Protocol

from slipstream.records import FinishReason, RoutedExperts, TopLogprobs, VersionSpan
from slipstream.rpc.errors import SlipstreamError
from slipstream.weights.group import Rendezvous
from slipstream.weights.manifest import Manifest


class EngineDied(SlipstreamError):
    """The engine has ended; only a new rollout process helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one turn. No top-p or top-k: the learner normalises over the whole vocabulary."""

    temperature: float
    max_tokens: int
    top_logprobs: int = 0
    """Number of likeliest tokens to return at each position, with their logprobs."""
    seed: int | None = None
    """Seed of this request: with equal weights, equal requests sample equal tokens. None for no seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Tokens that the policy sampled in one go, each with its logprob and the version that sampled it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    routed_experts: RoutedExperts | None = None
    """Experts of the prompt tokens and of all sampled tokens but the last, if the engine returns them."""
    top_logprobs: TopLogprobs | None = None
    """The likeliest tokens of each distribution that was sampled from, likeliest first, if requested."""


class Engine(Protocol):
    """One inference engine. Between `pause` and `resume` no token is sampled and no request is lost."""

    async def sample(self, prompt_token_ids: tuple[int, ...], sampling: Sampling) -> Turn:
        """Sample one turn; cancelling the call aborts the request. Errors: EngineDied."""

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        """Return the probability of each candidate as the next token, given that it is one of the candidates.

        In the order of `candidates`, at temperature 1. Errors: EngineDied.
        """

    async def pause(self) -> None:
        """Stop sampling and keep running requests. Pausing a paused engine changes nothing."""

    async def form_group(self, rendezvous: Rendezvous) -> None:
        """Join the process group of an epoch, and sample meanwhile. Errors: TransferError."""

    async def receive(self, manifest: Manifest, version: int) -> None:
        """Receive, verify and load a version, which is not served before `commit`. Errors: TransferError."""

    async def commit(self, version: int) -> None:
        """Label tokens sampled from now on with `version`, and stop using prefixes cached under older
        weights.

        Errors: TransferError.
        """

    async def resume(self) -> None:
        """Go on sampling."""

    async def close(self) -> None:
        """End the engine and its processes."""
