"""Conversion between the values of slipstream.records and the messages of rollout.proto."""

from dataclasses import asdict

from slipstream import records as t
from slipstream.rpc import codec
from slipstream.v1 import rollout_pb2 as pb


def rollout_status_to_proto(status: t.RolloutStatus) -> pb.RolloutStatus:
    """RolloutStatus → message."""
    return pb.RolloutStatus(**asdict(status))


def rollout_status_from_proto(message: pb.RolloutStatus) -> t.RolloutStatus:
    """Message → RolloutStatus."""
    return t.RolloutStatus(
        serving_version=message.serving_version,
        serving=message.serving,
        places=message.places,
        groups_running=message.groups_running,
        kv_cache_usage=message.kv_cache_usage,
        draining=message.draining,
    )


def chunk_to_proto(request: int, chunk: t.Chunk) -> pb.SampleChunk:
    """Chunk of a request → message; a Turn is the last chunk of its request."""
    message = pb.SampleChunk(
        id=request,
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        spans=codec.spans_to_proto(chunk.spans),
        top_logprobs=None if chunk.top_logprobs is None else codec.top_logprobs_to_proto(chunk.top_logprobs),
    )
    if isinstance(chunk, t.Turn):
        message.finish_reason = codec.FINISH_REASONS[chunk.finish_reason]
        if chunk.routed_experts is not None:
            message.routed_experts.CopyFrom(codec.routed_experts_to_proto(chunk.routed_experts))
    return message


def chunk_from_proto(message: pb.SampleChunk) -> t.Chunk:
    """Message → Chunk, or Turn for the last chunk of a request. Errors: ValueError for a malformed field."""
    chunk = t.Chunk(
        token_ids=tuple(message.token_ids),
        logprobs=tuple(message.logprobs),
        spans=codec.spans_from_proto(message.spans),
        top_logprobs=codec.top_logprobs_from_proto(message.top_logprobs)
        if message.HasField("top_logprobs")
        else None,
    )
    if not message.finish_reason:
        return chunk
    return t.Turn(
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        spans=chunk.spans,
        top_logprobs=chunk.top_logprobs,
        finish_reason=codec.finish_reason_from_proto(message.finish_reason),
        routed_experts=codec.routed_experts_from_proto(message.routed_experts)
        if message.HasField("routed_experts")
        else None,
    )
