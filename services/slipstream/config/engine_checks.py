"""Checks of the engine: combinations of vLLM options, and engines over several nodes."""

from collections.abc import Callable, Iterator
from typing import Literal

from slipstream.config.problem import Problem
from slipstream.config.schema import RunConfig

CACHE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of a cached value, by type. Other types also store scales; their size is not checked."""


def cache_type(config: RunConfig) -> str:
    """Return the type of the engine's key-value cache."""
    kind = config.rollout.vllm.kv_cache_dtype
    return config.model.dtype if kind in (None, "auto") else str(kind)


def _batches(config: RunConfig) -> Iterator[Problem]:
    """Check that a forward pass holds one token of each sequence; otherwise vLLM does not start."""
    options, rollout = config.rollout.vllm, config.rollout
    tokens, sequences = options.max_num_batched_tokens, options.max_num_seqs
    at_once = sequences or rollout.max_groups * rollout.group_size
    if tokens is not None and tokens < at_once:
        whose = "rollout.vllm.max_num_seqs" if sequences else "rollout.max_groups × rollout.group_size"
        yield Problem(
            key="rollout.vllm.max_num_batched_tokens",
            reason=f"is {tokens}, and {at_once} sequences are computed at a time ({whose})",
            remedy=f"raise it to {at_once} or more, or set rollout.vllm.max_num_seqs to at most {tokens}",
        )
    if options.max_num_active_seqs is not None and options.max_num_active_seqs > at_once:
        yield Problem(
            key="rollout.vllm.max_num_active_seqs",
            reason=f"is {options.max_num_active_seqs}, more than the {at_once} sequences of the engine",
            remedy=f"set it to at most {at_once}, or raise rollout.vllm.max_num_seqs",
        )


def beyond_context(config: RunConfig, context: int, *, context_is_known: bool) -> Iterator[Problem]:
    """Yield the options with which vLLM does not start, if its context is `context` tokens.

    `known`: False if the model may have a shorter context; then the problems are notes.
    """
    options = config.rollout.vllm
    severity: Literal["error", "note"] = "error" if context_is_known else "note"
    tokens, threshold = options.max_num_batched_tokens, options.long_prefill_token_threshold
    whose = f"the engine's context of {context:,} tokens"
    if options.enable_chunked_prefill is False and tokens is not None and tokens < context:
        yield Problem(
            key="rollout.vllm.max_num_batched_tokens",
            reason=f"is {tokens}, below {whose}, and enable_chunked_prefill is false",
            remedy=f"raise it to {context} or more, leave enable_chunked_prefill out, or set "
            "rollout.context_tokens",
            severity=severity,
        )
    if threshold is not None and threshold > context:
        yield Problem(
            key="rollout.vllm.long_prefill_token_threshold",
            reason=f"is {threshold}, above {whose}",
            remedy=f"lower it to at most {context}, or leave it out",
            severity=severity,
        )


def _split_cache(config: RunConfig) -> Iterator[Problem]:
    """Check that the GPUs of an engine can be divided into groups that split the cache of a sequence."""
    parts, ranks = config.rollout.vllm.decode_context_parallel_size, config.rollout.tensor_parallel
    if parts is not None and ranks % parts:
        yield Problem(
            key="rollout.vllm.decode_context_parallel_size",
            reason=f"is {parts}, which does not divide rollout.tensor_parallel ({ranks})",
            remedy=f"set it to a divisor of {ranks}, or leave it out",
        )


def _narrow_cache(config: RunConfig) -> Iterator[Problem]:
    kind = cache_type(config)
    if kind == config.model.dtype:
        return
    yield Problem(
        key="rollout.vllm.kv_cache_dtype",
        reason=f"is {kind}: the engine samples from a model with a rounded cache, which the learner does not "
        "have, so that their logprobs differ at equal weights",
        remedy="look at the ratios on the dashboard Losses, and take a correction (algorithm.correction) if "
        "they are far from 1",
        severity="note",
    )


def _nodes(config: RunConfig) -> Iterator[Problem]:
    """Check an engine that spans several nodes."""
    rollout, lora = config.rollout, config.learner.lora
    if rollout.nodes == 1:
        return
    if rollout.tensor_parallel % rollout.nodes:
        yield Problem(
            key="rollout.nodes",
            reason=f"is {rollout.nodes}, which does not divide rollout.tensor_parallel "
            f"({rollout.tensor_parallel}): every node has the same number of GPUs of the engine",
            remedy="set rollout.tensor_parallel to nodes × GPUs of a node",
        )
    if rollout.engine != "vllm":
        yield Problem(
            key="rollout.nodes",
            reason=f"is {rollout.nodes}, and the engine `{rollout.engine}` runs on one node",
            remedy="set it to 1, or rollout.engine to `vllm`",
        )
    if lora is not None and lora.serve == "adapter":
        yield Problem(
            key="rollout.nodes",
            reason=f"is {rollout.nodes}, and an adapter is handed to vLLM in a directory of one node",
            remedy="set it to 1, or learner.lora.serve to `merged`",
        )


CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _nodes,
    _batches,
    _split_cache,
    _narrow_cache,
)
