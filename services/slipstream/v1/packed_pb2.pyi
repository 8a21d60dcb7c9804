from slipstream.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PackedCompletion(_message.Message):
    __slots__ = ("token_ids", "logprobs", "mask", "spans", "finish_reason", "rewards", "routed_experts", "top_logprobs", "prompt_token_ids", "later_segments", "turn_ends")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LATER_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TURN_ENDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    logprobs: bytes
    mask: bytes
    spans: _containers.RepeatedCompositeFieldContainer[_types_pb2.VersionSpan]
    finish_reason: _types_pb2.FinishReason
    rewards: _containers.RepeatedCompositeFieldContainer[_types_pb2.Reward]
    routed_experts: _types_pb2.RoutedExperts
    top_logprobs: _types_pb2.TopLogprobs
    prompt_token_ids: bytes
    later_segments: _containers.RepeatedCompositeFieldContainer[PackedSegment]
    turn_ends: _containers.RepeatedCompositeFieldContainer[_types_pb2.TurnEnd]
    def __init__(self, token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., mask: _Optional[bytes] = ..., spans: _Optional[_Iterable[_Union[_types_pb2.VersionSpan, _Mapping]]] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., rewards: _Optional[_Iterable[_Union[_types_pb2.Reward, _Mapping]]] = ..., routed_experts: _Optional[_Union[_types_pb2.RoutedExperts, _Mapping]] = ..., top_logprobs: _Optional[_Union[_types_pb2.TopLogprobs, _Mapping]] = ..., prompt_token_ids: _Optional[bytes] = ..., later_segments: _Optional[_Iterable[_Union[PackedSegment, _Mapping]]] = ..., turn_ends: _Optional[_Iterable[_Union[_types_pb2.TurnEnd, _Mapping]]] = ...) -> None: ...

class PackedSegment(_message.Message):
    __slots__ = ("token_ids", "logprobs", "mask", "spans", "finish_reason", "prompt_token_ids", "routed_experts", "top_logprobs", "turn_ends")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TURN_ENDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    logprobs: bytes
    mask: bytes
    spans: _containers.RepeatedCompositeFieldContainer[_types_pb2.VersionSpan]
    finish_reason: _types_pb2.FinishReason
    prompt_token_ids: bytes
    routed_experts: _types_pb2.RoutedExperts
    top_logprobs: _types_pb2.TopLogprobs
    turn_ends: _containers.RepeatedCompositeFieldContainer[_types_pb2.TurnEnd]
    def __init__(self, token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., mask: _Optional[bytes] = ..., spans: _Optional[_Iterable[_Union[_types_pb2.VersionSpan, _Mapping]]] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., prompt_token_ids: _Optional[bytes] = ..., routed_experts: _Optional[_Union[_types_pb2.RoutedExperts, _Mapping]] = ..., top_logprobs: _Optional[_Union[_types_pb2.TopLogprobs, _Mapping]] = ..., turn_ends: _Optional[_Iterable[_Union[_types_pb2.TurnEnd, _Mapping]]] = ...) -> None: ...

class PackedPrompt(_message.Message):
    __slots__ = ("prompt_id", "source")
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    prompt_id: str
    source: str
    def __init__(self, prompt_id: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class PackedGroup(_message.Message):
    __slots__ = ("group_id", "lease_epoch", "prompt", "prompt_token_ids", "completions", "worker_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    lease_epoch: int
    prompt: PackedPrompt
    prompt_token_ids: bytes
    completions: _containers.RepeatedCompositeFieldContainer[PackedCompletion]
    worker_id: str
    def __init__(self, group_id: _Optional[str] = ..., lease_epoch: _Optional[int] = ..., prompt: _Optional[_Union[PackedPrompt, _Mapping]] = ..., prompt_token_ids: _Optional[bytes] = ..., completions: _Optional[_Iterable[_Union[PackedCompletion, _Mapping]]] = ..., worker_id: _Optional[str] = ...) -> None: ...
