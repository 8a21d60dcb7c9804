"""An engine that waits instead of computing, for benchmarks of the loop.

A completion takes a lognormal time, the same for all members of a group. Its tokens are drawn uniformly from
a few token ids, and their logprobs and top logprobs are those of that distribution. Weight updates use the
real protocol and the real transfer; the received tensors are discarded.
"""

import asyncio
import math
import random
from itertools import groupby

import numpy as np
import torch

from slipstream.config import RunConfig
from slipstream.records import FinishReason, TopLogprobs, VersionSpan
from slipstream.rollout.engine import Sampling, Turn
from slipstream.weights.group import Rendezvous, TransferError, WeightGroup, form_group
from slipstream.weights.manifest import Manifest
from slipstream.weights.transfer import receive

CPU = torch.device("cpu")
TOKEN_RANGE = (3, 12)
LOGPROB = -math.log(TOKEN_RANGE[1] - TOKEN_RANGE[0] + 1)


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

    async def sample(self, prompt_token_ids: tuple[int, ...], sampling: Sampling) -> Turn:
        """See Engine."""
        prompt_random = random.Random(f"{self._seed}:{prompt_token_ids}")
        seconds = self._median * math.exp(prompt_random.gauss(0.0, self._sigma))
        versions = []
        for _ in range(sampling.max_tokens):
            await asyncio.sleep(seconds / sampling.max_tokens)
            await self._running.wait()
            versions.append(self._version)
        token_random = self._random if sampling.seed is None else random.Random(sampling.seed)
        tokens = tuple(token_random.randint(*TOKEN_RANGE) for _ in versions)
        return Turn(
            token_ids=tokens,
            logprobs=(LOGPROB,) * len(tokens),
            spans=_spans(versions),
            finish_reason=FinishReason.LENGTH,
            top_logprobs=_top_logprobs(len(tokens), sampling.top_logprobs),
        )

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        """See Engine; all candidates are equally likely."""
        await self._running.wait()
        return [1 / len(candidates)] * len(candidates)

    async def pause(self) -> None:
        """See Engine."""
        self._running.clear()

    async def form_group(self, rendezvous: Rendezvous) -> None:
        """See Engine."""
        await self.close()
        self._group = await asyncio.to_thread(form_group, rendezvous, device=CPU)

    async def receive(self, manifest: Manifest, version: int) -> None:
        """See Engine."""
        group = self._group
        if group is None:
            raise TransferError("weights were announced before a group was formed")
        try:
            await asyncio.to_thread(lambda: list(receive(group, manifest, version=version, device=CPU)))
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


def _top_logprobs(tokens: int, top_k: int) -> TopLogprobs | None:
    """Return the top logprobs of the uniform distribution, at each token: first the ids in TOKEN_RANGE, then
    the smallest other ids, with a logprob of minus infinity."""
    if not top_k:
        return None
    low, high = TOKEN_RANGE
    never_sampled = [*range(low), *range(high + 1, high + 1 + top_k)]
    ids = np.array([*range(low, high + 1), *never_sampled][:top_k], "<u4")
    sampled = (ids >= low) & (ids <= high)
    logprobs = np.where(sampled, LOGPROB, -np.inf).astype("<f4")
    return TopLogprobs(top_k=top_k, ids=ids.tobytes() * tokens, logprobs=logprobs.tobytes() * tokens)


def _spans(versions: list[int]) -> tuple[VersionSpan, ...]:
    spans: list[VersionSpan] = []
    for version, run in groupby(versions):
        start = spans[-1].end if spans else 0
        spans.append(VersionSpan(version=version, start=start, end=start + len(list(run))))
    return tuple(spans)
