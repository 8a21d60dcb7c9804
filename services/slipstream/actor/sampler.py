"""The interface through which an environment samples from a rollout, and the errors of a request."""

from typing import Protocol

from slipstream.records import Chunk, Sampling, Turn
from slipstream.rpc.errors import SlipstreamError


class RolloutsLost(SlipstreamError):
    """One request lost all the engines that it may be sampled on."""

    def __init__(self, message: str, *, engines: int = 1) -> None:
        super().__init__(message)
        self.engines = engines
        """Engines that ended, one after the other, before they had sampled one token of the request."""


class SamplingRefused(SlipstreamError):
    """A rollout refuses a request for good; the message says why."""


class Samplers(Protocol):
    """Samplers for requests that need no place, such as those of a judge."""

    def beside(self, prompt_id: str) -> "Sampler":
        """Return a sampler at the rollout that sampled the last group of a prompt, while that serves."""


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


class GroupPlace(Sampler, Protocol):
    """The place of a group at a rollout, or the group's wait for one."""

    @property
    def over_age(self) -> bool:
        """Whether the rollout of the place was over age, and the group waits for another one."""
