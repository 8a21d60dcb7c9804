"""The interface of an inference engine: sample tokens, and swap weights while requests wait."""

from typing import Protocol

from slipstream.records import NO_VERSION, Chunk, Sampling, Turn
from slipstream.rpc.errors import SlipstreamError
from slipstream.weights.group import Rendezvous
from slipstream.weights.manifest import Manifest


class EngineDied(SlipstreamError):
    """The engine has ended; only a new rollout process helps."""


class Engine(Protocol):
    """One inference engine. Between `pause` and `resume` no token is sampled and no request is lost."""

    @property
    def kv_cache_usage(self) -> float:
        """Share of the key-value cache in use, from 0 to 1; 0 for an engine without one."""

    @property
    def preemptions(self) -> int:
        """Requests that lost their key-value cache to others since the start, and were computed again."""

    async def sample(
        self, prompt_token_ids: tuple[int, ...], sampling: Sampling, *, request_id: str = ""
    ) -> Turn:
        """Sample one turn; cancelling the call aborts the request.

        `request_id`: unique name under which `sampled` finds the request; empty for one that nobody asks for.
        Errors: EngineDied, and ValueError for a request that the engine cannot take.
        """

    def sampled(self, request_id: str, start: int) -> Chunk:
        """Return the tokens that a running request has sampled so far, from position `start` on.

        Their versions are exact. Empty for a request that has not begun or has ended.
        """

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        """Return the probability of each candidate as the next token, given that it is one of the candidates.

        In the order of `candidates`, at temperature 1. Errors: EngineDied.
        """

    async def logprobs(self, token_ids: tuple[int, ...]) -> tuple[list[float], int] | None:
        """Return the logprob of each token but the first, at temperature 1, and the version of the weights.

        Fewer logprobs than that if the context is shorter; None for an engine without a model. Cancelling the
        call aborts the request. Errors: EngineDied.
        """

    async def pause(self) -> None:
        """Stop sampling and keep running requests. Pausing a paused engine changes nothing."""

    async def warm_up(self) -> None:
        """Do once what the first delta would wait for otherwise, before the rollout joins the fleet.

        Errors: TransferError, after which a delta may fail, and EngineDied.
        """

    async def form_group(self, rendezvous: Rendezvous) -> None:
        """Join the process group of an epoch, and sample meanwhile. Errors: TransferError."""

    async def base_version(self) -> int:
        """Return the version kept beside the weights, which a delta can change; NO_VERSION for none."""

    async def stage(
        self, manifest: Manifest, version: int, *, base_version: int = NO_VERSION, key: bytes = b""
    ) -> None:
        """Receive and verify a version into memory beside the weights, and sample meanwhile.

        base_version: for a delta, the oldest version that it changes into the new one. key: for encryption.
        Errors: TransferError, which leaves the engine's weights as they were.
        """

    async def leave_group(self) -> None:
        """Leave the process group: a `stage` that is running raises TransferError before its deadline."""

    async def receive(self, manifest: Manifest, version: int, *, key: bytes = b"") -> None:
        """Receive, verify and load a version between `pause` and `resume`. Errors: TransferError."""

    async def commit(self, version: int) -> None:
        """Load what was staged, label tokens sampled from now on with `version`, and stop using prefixes
        cached under older weights. Between `pause` and `resume`.

        Errors: TransferError.
        """

    async def load_in_full(self) -> None:
        """Load all of each later version, also where writing the changes of a delta in place was enough.

        Errors: EngineDied.
        """

    async def resume(self) -> None:
        """Go on sampling."""

    async def close(self) -> None:
        """End the engine and its processes."""
