"""The Engine over vLLM's AsyncLLM, through vLLM's own interface for reinforcement learning."""

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from slipstream.config import RunConfig
from slipstream.records import (
    NO_VERSION,
    Chunk,
    FinishReason,
    RoutedExperts,
    Sampling,
    TopLogprobs,
    Turn,
    VersionSpan,
)
from slipstream.rollout.adapter import ServedAdapter
from slipstream.rollout.engine import EngineDied
from slipstream.rollout.node_rank import NodeRank
from slipstream.rollout.vllm_arguments import prepare_arguments
from slipstream.telemetry.metrics import Metrics
from slipstream.weights.group import Rendezvous, TransferError
from slipstream.weights.manifest import Manifest, manifest_to_proto

T = TypeVar("T")

FORMED_POLL_SECONDS = 0.02
LEAST_STAGED_POLL_SECONDS, MOST_STAGED_POLL_SECONDS = 0.005, 0.05
STAGED_POLL_SHARE = 0.05
"""The time to the next question is this share of that since the first one, within the two bounds above. Each
question interrupts the steps of the engine, so a receipt that takes longer is asked for less often."""
FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class VllmEngine:
    """Samples with processed logprobs (after temperature); WeightReceiver receives the weights.

    Invariant: a request reads a cached prefix only if it was computed by the weights under which the request
    was submitted. vLLM refuses to reset its prefix cache while it keeps requests, so each update changes the
    salt of the cache keys: older blocks are not found any more, and are evicted as least recently used. A
    request that arrives during a pause is submitted after it, under the new weights. With an adapter, updates
    bring the adapter, and every request names it.
    """

    def __init__(
        self,
        llm: Any,
        *,
        recompute_kv: bool,
        adapter: ServedAdapter | None = None,
        cache_use: "CacheUseLogger | None" = None,
        metrics: Metrics | None = None,
        processes: int = 1,
    ) -> None:
        """`processes`: that hold a shard of the model each."""
        self._llm = llm
        self._metrics = metrics
        self._processes = processes
        self._cache_use = cache_use
        self._recompute_kv = recompute_kv
        self._adapter = adapter
        self._running = asyncio.Event()
        self._running.set()
        self._pausing, self._idle = asyncio.Lock(), False
        self._salt = "initial"
        self._staged: dict[str, Any] | None = None

    @property
    def kv_cache_usage(self) -> float:
        """See Engine."""
        return 0.0 if self._cache_use is None else self._cache_use.share

    @property
    def preemptions(self) -> int:
        """See Engine."""
        return 0 if self._cache_use is None else self._cache_use.preemptions

    async def sample(
        self, prompt_token_ids: tuple[int, ...], sampling: Sampling, *, request_id: str = ""
    ) -> Turn:
        """See Engine."""
        request = await self._finished(
            prompt_token_ids,
            request_id or uuid.uuid4().hex,
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            logprobs=sampling.top_logprobs,
            seed=sampling.seed,
        )
        return _turn(request.outputs[0], top_k=sampling.top_logprobs)

    def sampled(self, request_id: str, start: int) -> Chunk:
        """See Engine. vLLM returns versions with finished outputs only, so this reads the state of the
        request, in which each token has its version as soon as it arrives from the engine's process."""
        processor = self._llm.output_processor
        for internal_id in processor.external_req_ids.get(request_id, ()):
            state = processor.request_states.get(internal_id)
            if state is not None:
                return _chunk(state, start)
        return Chunk()

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        """See Engine."""
        request = await self._finished(
            prompt_token_ids,
            uuid.uuid4().hex,
            temperature=1.0,
            max_tokens=1,
            logprobs=len(candidates),
            allowed_token_ids=list(candidates),
        )
        flat = request.outputs[0].logprobs
        logprobs = dict(zip(flat.token_ids, flat.logprobs, strict=True))
        return [math.exp(logprobs[token]) for token in candidates]

    async def logprobs(self, token_ids: tuple[int, ...]) -> tuple[list[float], int]:
        """See Engine. The version is that of the token which vLLM samples behind the prompt."""
        token_ids = token_ids[: self._llm.model_config.max_model_len - 1]
        request = await self._finished(
            token_ids, uuid.uuid4().hex, temperature=1.0, max_tokens=1, prompt_logprobs=0
        )
        version = request.outputs[0].weight_versions[0].version
        by_position = request.prompt_logprobs
        logprobs = [by_position[place][token].logprob for place, token in enumerate(token_ids) if place]
        return logprobs, int(version) if version.isdecimal() else NO_VERSION  # "default" before any update

    async def _finished(self, prompt_token_ids: tuple[int, ...], request_id: str, **sampling: Any) -> Any:
        """Submit one request once the engine is not paused; return vLLM's RequestOutput of it.

        Errors: EngineDied, and ValueError for a request that vLLM refuses.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        parameters = SamplingParams(
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **sampling,
        )
        await self._running.wait()
        request = {"prompt_token_ids": list(prompt_token_ids), "cache_salt": self._salt}
        options = {} if self._adapter is None else {"lora_request": self._adapter.request()}
        try:
            async for output in self._llm.generate(request, parameters, request_id, **options):
                if output.finished:
                    return output
        except EngineDeadError as error:
            raise EngineDied("vLLM's engine process died; its log says why") from error
        raise EngineDied("vLLM ended a request without an output")

    async def pause(self) -> None:
        """See Engine."""
        self._running.clear()
        async with self._pausing:
            if self._idle:
                return
            # `pause_generation` of vLLM 0.32 does the same, and then sleeps for 20 ms, so that outputs which
            # are on their way arrive first. A token's version is noted in the engine's process.
            await _alive(self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=False))
            self._idle = True

    async def warm_up(self) -> None:
        """See Engine."""
        await self._ask("warm_up_for_deltas")

    async def form_group(self, rendezvous: Rendezvous) -> None:
        """See Engine."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        info = {
            "epoch": rendezvous.epoch,
            "rank": rendezvous.rank,
            "world_size": rendezvous.world_size,
            "senders": rendezvous.senders,
            "store_host": rendezvous.store_host,
            "store_port": rendezvous.store_port,
            "timeout_seconds": rendezvous.timeout_seconds,
            "nonce": rendezvous.nonce,
        }
        await self._in_all(self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info)))
        while not all(await self._ask("weight_group_formed")):  # noqa: ASYNC110 (it forms in other processes)
            await asyncio.sleep(FORMED_POLL_SECONDS)

    async def base_version(self) -> int:
        """See Engine."""
        versions = set(await self._ask("weights_base_version"))
        return versions.pop() if len(versions) == 1 else NO_VERSION

    async def stage(
        self, manifest: Manifest, version: int, *, base_version: int = NO_VERSION, key: bytes = b""
    ) -> None:
        """See Engine."""
        self._staged = None
        info = self._update_info(manifest, version, key) | {"base_version": base_version}
        await self._ask("stage_weights", info)
        began = time.monotonic()
        while not all(await self._ask("weights_staged")):
            late = STAGED_POLL_SHARE * (time.monotonic() - began)
            await asyncio.sleep(min(max(late, LEAST_STAGED_POLL_SECONDS), MOST_STAGED_POLL_SECONDS))
        self._staged = {**info, "staged": True}

    async def leave_group(self) -> None:
        """See Engine."""
        await self._ask("leave_weight_group")

    async def receive(self, manifest: Manifest, version: int, *, key: bytes = b"") -> None:
        """See Engine."""
        self._staged = None
        await self._load(self._update_info(manifest, version, key))

    def _update_info(self, manifest: Manifest, version: int, key: bytes) -> dict[str, Any]:
        return {
            "key": key,
            "manifest": manifest_to_proto(manifest).SerializeToString(),
            "version": version,
            "adapter_dir": None if self._adapter is None else str(self._adapter.path),
        }

    async def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """Return the results of a method of WorkerExtension in all processes. Errors: TransferError."""
        outcomes = await _transfer(self._llm.collective_rpc(method, args=arguments))
        reasons = [reason for _, reason in outcomes if reason]
        if reasons:
            raise TransferError(f"weight update failed in the engine: {reasons[0]}")
        return [result for result, _ in outcomes]

    async def _in_all(self, call: Awaitable[T]) -> T:
        """Await a call that raises in the processes where it fails.

        vLLM reads the replies of several processes only until one raises, and would take the others for the
        replies to its next call. So such an engine ends, and its pod starts another one.
        Errors: TransferError with one process; EngineDied with several.
        """
        try:
            return await _transfer(call)
        except TransferError as error:
            if self._processes > 1:
                raise EngineDied(f"one of the {self._processes} processes: {error}") from error
            raise

    async def _load(self, info: dict[str, Any]) -> None:
        """Have the weights of an update loaded, in a pause.

        vLLM's own methods for this would raise in the processes where they fail (see `_in_all`).
        Errors: TransferError; EngineDied if the end of an earlier load fails in one of several processes.
        """
        await self._in_all(self._ask("begin_weight_update"))
        await self._ask("load_weight_update", info)

    async def commit(self, version: int) -> None:
        """See Engine."""
        staged, self._staged = self._staged, None
        if staged is not None:
            await self._load(staged)
            await self._count(staged)
        await self._in_all(self._llm.finish_weight_update(str(version)))
        if self._adapter is not None:  # load it now: a request that fails to load it would end the engine
            await self._in_all(self._llm.add_lora(self._adapter.request()))
        self._salt = uuid.uuid4().hex  # a restarted learner reuses version numbers
        if self._recompute_kv:
            await self._in_all(self._llm.reset_prefix_cache(reset_running_requests=True))

    async def _count(self, info: dict[str, Any]) -> None:
        """Count a delta that was loaded, by how it was."""
        if self._metrics is not None and info["base_version"] != NO_VERSION and self._adapter is None:
            in_place = all(await self._ask("weights_written_in_place"))
            self._metrics.count("deltas_applied_total", how="in_place" if in_place else "in_full")

    async def load_in_full(self) -> None:
        """See Engine."""
        try:
            await self._ask("load_weights_in_full")
        except TransferError as error:
            raise EngineDied(str(error)) from error

    async def resume(self) -> None:
        """See Engine."""
        self._idle = False
        await _alive(self._llm.resume_generation())
        self._running.set()

    async def close(self) -> None:
        """See Engine."""
        llm, self._llm = self._llm, None
        llm.shutdown()
        if self._adapter is not None:
            self._adapter.close()


def start_vllm(
    config: RunConfig, model_dir: Path, metrics: Metrics | None = None, *, node: NodeRank | None = None
) -> VllmEngine:
    """Start the engine on a model directory; `metrics`, if given, show the use of its KV cache.

    With a `node` it is the head of an engine over several nodes, and waits for the other nodes. Blocks for
    half a minute. Errors: those of `prepare_arguments` and of vLLM.
    """
    lora = config.learner.lora
    adapter = ServedAdapter(lora) if lora is not None and lora.serve == "adapter" else None
    arguments = prepare_arguments(config, model_dir, adapter=adapter, node=node)
    from vllm.v1.engine.async_llm import AsyncLLM

    cache_use = CacheUseLogger(metrics)
    return VllmEngine(
        # Not in a local variable: an import error inside vLLM keeps this frame alive, and would keep the
        # engine alive too.
        AsyncLLM.from_engine_args(arguments, stat_loggers=[lambda _config, _engine: cache_use]),
        recompute_kv=config.rollout.recompute_kv,
        adapter=adapter,
        cache_use=cache_use,
        metrics=metrics,
        processes=arguments.tensor_parallel_size * arguments.pipeline_parallel_size,
    )


class CacheUseLogger:
    """A stat logger with the methods of vLLM's StatLoggerBase, called after every engine step."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics
        self.share = 0.0
        """Share of the KV cache in use at the last step."""
        self.preemptions = 0
        """Requests that were preempted since the start."""

    def record(
        self, scheduler_stats: Any | None, iteration_stats: Any | None = None, *_: Any, **__: Any
    ) -> None:
        """Take in an engine step; one that scheduled nothing has no statistics."""
        if iteration_stats is not None and iteration_stats.num_preempted_reqs:
            self.preemptions += iteration_stats.num_preempted_reqs
            if self._metrics is not None:
                self._metrics.count("preemptions_total", iteration_stats.num_preempted_reqs)
        if scheduler_stats is not None:
            self.share = float(scheduler_stats.kv_cache_usage)
            if self._metrics is not None:
                self._metrics.set("kv_cache_usage", self.share)

    def log_engine_initialized(self) -> None:
        """Do nothing."""

    def log(self) -> None:
        """Do nothing."""


def _chunk(state: Any, start: int) -> Chunk:
    """Return the tokens of a running request from position `start` on."""
    token_ids = tuple(state.detokenizer.output_token_ids[start:])
    if not token_ids:
        return Chunk()
    end = start + len(token_ids)
    flat = state.logprobs_processor.logprobs
    first = flat.start_indices[start]
    rows = flat.end_indices[end - 1] - first
    width = rows // len(token_ids)
    sampled = flat.logprobs[first : first + rows]
    return Chunk(
        token_ids=token_ids,
        logprobs=tuple(sampled[::width]),
        spans=_spans_since(state.weight_version_starts, start, end),
        top_logprobs=_likeliest(flat.token_ids[first : first + rows], sampled, width - 1)
        if width > 1
        else None,
    )


def _spans_since(starts: list[tuple[str, int]], start: int, end: int) -> tuple[VersionSpan, ...]:
    """Return the spans of tokens [start, end), from vLLM's (version, first token) of a whole request."""
    ends = [first for _, first in starts[1:]] + [end]
    return tuple(
        VersionSpan(version=int(version), start=max(first, start) - start, end=last - start)
        for (version, first), last in zip(starts, ends, strict=True)
        if last > max(first, start)
    )


def _turn(output: Any, *, top_k: int = 0) -> Turn:
    if output.finish_reason not in FINISH_REASONS:
        raise EngineDied(f"vLLM ended a request with {output.finish_reason!r}")
    token_ids = tuple(output.token_ids)
    flat = output.logprobs
    logprobs = tuple(flat.logprobs[start] for start in flat.start_indices)
    spans = tuple(
        VersionSpan(version=int(span.version), start=span.start, end=span.end)
        for span in output.weight_versions or ()
        if span.end > span.start
    )
    return Turn(
        token_ids=token_ids,
        logprobs=logprobs,
        spans=spans,
        finish_reason=FINISH_REASONS[output.finish_reason],
        routed_experts=None if output.routed_experts is None else _experts(output.routed_experts),
        top_logprobs=_likeliest(flat.token_ids, flat.logprobs, top_k) if top_k else None,
    )


def _experts(ids: Any) -> RoutedExperts:
    """Return vLLM's array [tokens, layers, top_k] of uint8 or uint16 as little-endian bytes."""
    little = ids.astype(ids.dtype.newbyteorder("<"))
    tokens, layers, top_k = ids.shape
    return RoutedExperts(
        tokens=tokens, layers=layers, top_k=top_k, id_bytes=ids.dtype.itemsize, ids=little.tobytes()
    )


def _likeliest(token_ids: Any, logprobs: Any, top_k: int) -> TopLogprobs:
    """Return the `top_k` likeliest tokens of each position.

    At each position vLLM's flat logprobs hold the sampled token first, and then the `top_k` likeliest tokens,
    which may include the sampled one.
    """
    ids_TN = np.asarray(token_ids, "<u4").reshape(-1, 1 + top_k)
    logprobs_TN = np.asarray(logprobs, "<f4").reshape(-1, 1 + top_k)
    return TopLogprobs(top_k=top_k, ids=ids_TN[:, 1:].tobytes(), logprobs=logprobs_TN[:, 1:].tobytes())


async def _transfer(call: Awaitable[T]) -> T:
    """Await a call into the processes of the engine. Errors: EngineDied; TransferError for the others."""
    try:
        return await _alive(call)
    except EngineDied:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TransferError(f"weight update failed in the engine: {reason}") from error


async def _alive(call: Awaitable[T]) -> T:
    """Await a call into the processes of the engine. Errors: EngineDied, and those of the call."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        return await call
    except EngineDeadError as error:
        raise EngineDied("vLLM's engine process died; its log says why") from error
