"""A rollout pod whose engine writes a trace: traced_rollout.py FOLDER --config FILE --name rollout-N.

The tokens are random. The logprob of a token names the rollout, and is a hash of the version, the context
and the token: a completion shows which rollout sampled each token, in which context, at which version.
FOLDER gets NAME.trace with one line for each token: the time, the request, how many tokens are left to
sample, and the hash of the completion so far. The prompt in FOLDER/poison.json, a list of token ids, ends the
engine.
"""

import asyncio
import json
import random
import sys
import time
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from slipstream.config import RunConfig
from slipstream.records import Chunk, FinishReason, Sampling, Turn, VersionSpan, joined
from slipstream.rollout.emulated_engine import TOKEN_RANGE, EmulatedEngine
from slipstream.rollout.engine import EngineDied

HASHES = 2**20
"""Logprobs have so many values for each rollout; all of them are exact in float32."""


def hash_of(context: Sequence[int]) -> str:
    """Return the hash of a prompt and the tokens after it."""
    return f"{zlib.crc32(repr(tuple(context)).encode()):08x}"


def logprob_of(number: int, version: int, context: Sequence[int]) -> float:
    """Return the logprob of the last token of `context`, as sampled by rollout-`number` (0 to 6)."""
    return -(number + 1 + zlib.crc32(f"{version} {tuple(context)}".encode()) % HASHES / HASHES)


class TracedEngine(EmulatedEngine):
    """An EmulatedEngine whose completions take up to twice as long as `emulated.median_seconds`."""

    def __init__(self, folder: Path, name: str, config: RunConfig) -> None:
        super().__init__(config)
        self._number = int(name.rpartition("-")[2])
        self._token_seconds = config.rollout.emulated.median_seconds / config.rollout.max_new_tokens
        self._trace = (folder / f"{name}.trace").open("a", buffering=1)
        poison = folder / "poison.json"
        self._poison = tuple(json.loads(poison.read_text())) if poison.exists() else None
        self._chunks: dict[str, list[Chunk]] = {}

    async def sample(
        self, prompt_token_ids: tuple[int, ...], sampling: Sampling, *, request_id: str = ""
    ) -> Turn:
        """See Engine."""
        if prompt_token_ids == self._poison:
            raise EngineDied("the prompt is poison")
        chunks = self._chunks[request_id] = []
        context, token_seconds = prompt_token_ids, self._token_seconds * random.uniform(0.5, 2)
        try:
            while len(chunks) < sampling.max_tokens:
                await asyncio.sleep(token_seconds)
                await self._running.wait()
                context += (random.randint(*TOKEN_RANGE),)
                left = sampling.max_tokens - len(chunks) - 1
                self._trace.write(f"{time.time():.4f} {request_id} {left} {hash_of(context)}\n")
                chunks.append(self._token(context))
        finally:
            del self._chunks[request_id]
        sampled = joined(chunks)
        return Turn(
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            spans=sampled.spans,
            finish_reason=FinishReason.LENGTH,
        )

    def sampled(self, request_id: str, start: int) -> Chunk:
        """See Engine."""
        return joined(self._chunks.get(request_id, [])[start:])

    def _token(self, context: tuple[int, ...]) -> Chunk:
        return Chunk(
            token_ids=context[-1:],
            logprobs=(logprob_of(self._number, self._version, context),),
            spans=(VersionSpan(version=self._version, start=0, end=1),),
        )


if __name__ == "__main__":
    import slipstream.rollout.__main__ as rollout
    from slipstream.rpc.pod import parse_arguments, run_pod

    arguments = sys.argv[2:]
    name = parse_arguments("rollout", arguments).name
    rollout.EmulatedEngine = partial(TracedEngine, Path(sys.argv[1]), name)  # type: ignore[misc, assignment]
    sys.exit(run_pod("rollout", rollout.main, arguments))
