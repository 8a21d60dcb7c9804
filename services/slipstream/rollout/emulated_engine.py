"""An engine that waits instead of computing, for benchmarks of the loop.

A completion takes a lognormal time, the same for all members of a group. Its tokens are drawn uniformly from
a few token ids, and their logprobs and top logprobs are those of that distribution. Weight updates use the
real protocol and the real transfer; the received tensors are never loaded.
"""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch

from slipstream import records
from slipstream.config import RunConfig
from slipstream.weights.base_copy import BaseCopy
from slipstream.weights.delta import compile_loops
from slipstream.weights.group import Rendezvous, TransferError, WeightGroup, form_group
from slipstream.weights.manifest import Manifest
from slipstream.weights.transfer import receive

CPU = torch.device("cpu")
TOKEN_RANGE = (3, 12)
ELEMENT_SIZES = (2, 4)
"""In bytes, of the weights that a learner sends."""
LOGPROB = -math.log(TOKEN_RANGE[1] - TOKEN_RANGE[0] + 1)


@dataclass(slots=True, kw_only=True)
class _Progress:
    """The tokens that a running request has sampled, and their versions."""

    top_k: int
    token_ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def since(self, start: int) -> records.Chunk:
        """Return the tokens from position `start` on."""
        token_ids = tuple(self.token_ids[start:])
        return records.Chunk(
            token_ids=token_ids,
            logprobs=(LOGPROB,) * len(token_ids),
            spans=_spans(self.versions[start:]),
            top_logprobs=_top_logprobs(len(token_ids), self.top_k),
        )


class EmulatedEngine:
    """An Engine: time in a pause does not count as sampling, and spans name the version that was served."""

    def __init__(self, config: RunConfig) -> None:
        self._median = config.rollout.emulated.median_seconds
        self._sigma = config.rollout.emulated.sigma
        self._seed = config.seed
        self._random = random.Random(f"emulated:{config.seed}")
        self._running = asyncio.Event()
        self._running.set()
        self._version = -1
        self._group: WeightGroup | None = None
        self._progress: dict[str, _Progress] = {}
        self.base = BaseCopy()

    @property
    def kv_cache_usage(self) -> float:
        """See Engine; there is no cache."""
        return 0.0

    @property
    def preemptions(self) -> int:
        """See Engine; there is no cache."""
        return 0

    async def sample(
        self, prompt_token_ids: tuple[int, ...], sampling: records.Sampling, *, request_id: str = ""
    ) -> records.Turn:
        """See Engine."""
        prompt_random = random.Random(f"{self._seed}:{prompt_token_ids}")
        token_random = self._random if sampling.seed is None else random.Random(sampling.seed)
        seconds = self._median * math.exp(prompt_random.gauss(0.0, self._sigma))
        progress = _Progress(top_k=sampling.top_logprobs)
        if request_id:
            self._progress[request_id] = progress
        try:
            for _ in range(sampling.max_tokens):
                await asyncio.sleep(seconds / sampling.max_tokens)
                await self._running.wait()
                progress.token_ids.append(token_random.randint(*TOKEN_RANGE))
                progress.versions.append(self._version)
        finally:
            self._progress.pop(request_id, None)
        return records.turn_of(progress.since(0), finish_reason=records.FinishReason.LENGTH)

    def sampled(self, request_id: str, start: int) -> records.Chunk:
        """See Engine."""
        progress = self._progress.get(request_id)
        return records.Chunk() if progress is None else progress.since(start)

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        """See Engine; all candidates are equally likely."""
        await self._running.wait()
        return [1 / len(candidates)] * len(candidates)

    async def logprobs(self, token_ids: tuple[int, ...]) -> tuple[list[float], int] | None:
        """See Engine; there is no model."""
        return None

    async def pause(self) -> None:
        """See Engine."""
        self._running.clear()

    async def warm_up(self) -> None:
        """See Engine."""
        await asyncio.to_thread(compile_loops, ELEMENT_SIZES)

    async def form_group(self, rendezvous: Rendezvous) -> None:
        """See Engine."""
        await self.close()
        self._group = await asyncio.to_thread(form_group, rendezvous, device=CPU)

    async def base_version(self) -> int:
        """See Engine."""
        return self.base.version

    async def stage(
        self, manifest: Manifest, version: int, *, base_version: int = records.NO_VERSION, key: bytes = b""
    ) -> None:
        """See Engine; the copy beside the weights is real, and loaded nowhere."""
        await self._with_group(
            lambda group: self.base.receive(
                group, manifest, version=version, base=base_version, device=CPU, key=key
            )
        )

    async def load_in_full(self) -> None:
        """See Engine; nothing is loaded."""

    async def leave_group(self) -> None:
        """See Engine."""
        await self.close()

    async def receive(self, manifest: Manifest, version: int, *, key: bytes = b"") -> None:
        """See Engine; the bytes are verified, and loaded nowhere."""
        self.base.forget()
        await self._with_group(
            lambda group: list(receive(group, manifest, version=version, device=CPU, key=key))
        )

    async def _with_group(self, call: Callable[[WeightGroup], object]) -> None:
        """Run a call in a thread; an error closes the group. Errors: TransferError."""
        group = self._group
        if group is None:
            raise TransferError("weights were announced before a group was formed")
        try:
            await asyncio.to_thread(call, group)
        except TransferError:
            await self.close()
            raise

    async def commit(self, version: int) -> None:
        """See Engine."""
        self._version = version

    async def resume(self) -> None:
        """See Engine."""
        self._running.set()

    async def close(self) -> None:
        """See Engine."""
        if self._group is not None:
            self._group.close()
            self._group = None


def _top_logprobs(tokens: int, top_k: int) -> records.TopLogprobs | None:
    """Return the top logprobs of the uniform distribution, at each token: first the ids in TOKEN_RANGE, then
    the smallest other ids, with a logprob of minus infinity."""
    if not top_k:
        return None
    low, high = TOKEN_RANGE
    never_sampled = [*range(low), *range(high + 1, high + 1 + top_k)]
    ids = np.array([*range(low, high + 1), *never_sampled][:top_k], "<u4")
    sampled = (ids >= low) & (ids <= high)
    logprobs = np.where(sampled, LOGPROB, -np.inf).astype("<f4")
    return records.TopLogprobs(top_k=top_k, ids=ids.tobytes() * tokens, logprobs=logprobs.tobytes() * tokens)


def _spans(versions: list[int]) -> tuple[records.VersionSpan, ...]:
    spans: list[records.VersionSpan] = []
    for version, run in groupby(versions):
        start = spans[-1].end if spans else 0
        spans.append(records.VersionSpan(version=version, start=start, end=start + len(list(run))))
    return tuple(spans)
