"""What an environment samples from: an engine somewhere, behind two methods."""

from typing import Protocol

from slipstream.records import Sampling, Turn
from slipstream.rpc.errors import SlipstreamError


class RolloutsLost(SlipstreamError):
    """One turn lost all the engines that it may be sampled on."""


class SamplingRefused(SlipstreamError):
    """A rollout refuses a request for good; the message says why."""


class Sampler(Protocol):
    """Samples from the policy. Errors of both methods: RolloutsLost, SamplingRefused."""

    async def sample(self, prompt_token_ids: tuple[int, ...], sampling: Sampling) -> Turn:
        """Sample one turn; cancelling the call aborts the request."""

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        """Return the probability of each candidate as the next token, given that it is one of the candidates.

        In the order of `candidates`, at temperature 1.
        """
