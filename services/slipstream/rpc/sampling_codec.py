"""Conversion between the values of slipstream.records and the messages of rollout.proto."""

from collections.abc import Sequence
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


def chunks_from_proto(messages: Sequence[pb.SampleChunk]) -> t.Chunk:
    """All messages of a request so far → one Chunk, or a Turn if the last one ended the request.

    Errors: ValueError for a malformed field.
    """
    token_ids: list[int] = []
    logprobs: list[float] = []
    spans: list[list[int]] = []  # version, start, end
    top: t.TopLogprobs | None = None
    for message in messages:
        offset = len(token_ids)
        token_ids.extend(message.token_ids)
        logprobs.extend(message.logprobs)
        for span in message.spans:
            if spans and spans[-1][0] == span.version and spans[-1][2] == offset + span.start:
                spans[-1][2] = offset + span.end
            else:
                spans.append([span.version, offset + span.start, offset + span.end])
        if message.HasField("top_logprobs"):
            more = codec.top_logprobs_from_proto(message.top_logprobs)
            top = more if top is None else top.followed_by(more)
    chunk = t.Chunk(
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        spans=tuple(t.VersionSpan(version=version, start=start, end=end) for version, start, end in spans),
        top_logprobs=top,
    )
    return _turn(chunk, messages[-1]) if messages and messages[-1].finish_reason else chunk


def _turn(chunk: t.Chunk, last: pb.SampleChunk) -> t.Turn:
    """Return the tokens of a request that has ended as a turn."""
    return t.turn_of(
        chunk,
        finish_reason=codec.finish_reason_from_proto(last.finish_reason),
        routed_experts=codec.routed_experts_from_proto(last.routed_experts)
        if last.HasField("routed_experts")
        else None,
    )
