"""What an environment samples from: an engine somewhere, behind two methods."""

from typing import Protocol

from slipstream.records import Chunk, Sampling, Turn
from slipstream.rpc.errors import SlipstreamError


class RolloutsLost(SlipstreamError):
    """One turn lost all the engines that it may be sampled on."""


class SamplingRefused(SlipstreamError):
    """A rollout refuses a request for good; the message says why."""


class Watch(Protocol):
    """Reads a turn while it is sampled, and may end it."""

    def __call__(self, chunk: Chunk) -> int | None:
        """Take the next tokens of the turn.

        Return how many of them belong to the turn, if it ends with one of them; else None. It is not called
        again after it has ended the turn.
        """


class Sampler(Protocol):
    """Samples from the policy. Errors of both methods: RolloutsLost, SamplingRefused."""

    async def sample(
        self, prompt_token_ids: tuple[int, ...], sampling: Sampling, watch: Watch | None = None
    ) -> Turn:
        """Sample one turn, which `watch` reads, if it is given; cancelling the call aborts the request."""

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        """Return the probability of each candidate as the next token, given that it is one of the candidates.

        In the order of `candidates`, at temperature 1.
        """
