from slipstream.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SampleRequest(_message.Message):
    __slots__ = ("start", "cancel")
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    start: _containers.RepeatedCompositeFieldContainer[StartSampling]
    cancel: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start: _Optional[_Iterable[_Union[StartSampling, _Mapping]]] = ..., cancel: _Optional[_Iterable[int]] = ...) -> None: ...

class StartSampling(_message.Message):
    __slots__ = ("id", "group_id", "token_ids", "temperature", "max_tokens", "top_logprobs", "seed", "candidates")
    ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    id: int
    group_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    temperature: float
    max_tokens: int
    top_logprobs: int
    seed: int
    candidates: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., group_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., temperature: _Optional[float] = ..., max_tokens: _Optional[int] = ..., top_logprobs: _Optional[int] = ..., seed: _Optional[int] = ..., candidates: _Optional[_Iterable[int]] = ...) -> None: ...

class SampleResponse(_message.Message):
    __slots__ = ("chunks", "status")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[SampleChunk]
    status: RolloutStatus
    def __init__(self, chunks: _Optional[_Iterable[_Union[SampleChunk, _Mapping]]] = ..., status: _Optional[_Union[RolloutStatus, _Mapping]] = ...) -> None: ...

class SampleChunk(_message.Message):
    __slots__ = ("id", "token_ids", "logprobs", "spans", "top_logprobs", "finish_reason", "routed_experts", "probabilities", "retry_after_seconds", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    spans: _containers.RepeatedCompositeFieldContainer[_types_pb2.VersionSpan]
    top_logprobs: _types_pb2.TopLogprobs
    finish_reason: _types_pb2.FinishReason
    routed_experts: _types_pb2.RoutedExperts
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    retry_after_seconds: float
    error: str
    def __init__(self, id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., spans: _Optional[_Iterable[_Union[_types_pb2.VersionSpan, _Mapping]]] = ..., top_logprobs: _Optional[_Union[_types_pb2.TopLogprobs, _Mapping]] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., routed_experts: _Optional[_Union[_types_pb2.RoutedExperts, _Mapping]] = ..., probabilities: _Optional[_Iterable[float]] = ..., retry_after_seconds: _Optional[float] = ..., error: _Optional[str] = ...) -> None: ...

class RolloutStatus(_message.Message):
    __slots__ = ("serving_version", "serving", "places", "groups_running", "kv_cache_usage", "draining")
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    serving_version: int
    serving: bool
    places: int
    groups_running: int
    kv_cache_usage: float
    draining: bool
    def __init__(self, serving_version: _Optional[int] = ..., serving: bool = ..., places: _Optional[int] = ..., groups_running: _Optional[int] = ..., kv_cache_usage: _Optional[float] = ..., draining: bool = ...) -> None: ...
