from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_SCORE: _ClassVar[Outcome]
    OUTCOME_INVALID_ANSWER: _ClassVar[Outcome]
    OUTCOME_ERROR: _ClassVar[Outcome]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_SCORE: Outcome
OUTCOME_INVALID_ANSWER: Outcome
OUTCOME_ERROR: Outcome

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("prompt_id", "task", "text", "messages", "answer", "fields", "source")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    prompt_id: str
    task: str
    text: str
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    answer: str
    fields: _containers.ScalarMap[str, str]
    source: str
    def __init__(self, prompt_id: _Optional[str] = ..., task: _Optional[str] = ..., text: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., answer: _Optional[str] = ..., fields: _Optional[_Mapping[str, str]] = ..., source: _Optional[str] = ...) -> None: ...

class VersionSpan(_message.Message):
    __slots__ = ("version", "start", "end")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    version: int
    start: int
    end: int
    def __init__(self, version: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class StepReward(_message.Message):
    __slots__ = ("value", "text_end", "token_end", "segment")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TEXT_END_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    value: float
    text_end: int
    token_end: int
    segment: int
    def __init__(self, value: _Optional[float] = ..., text_end: _Optional[int] = ..., token_end: _Optional[int] = ..., segment: _Optional[int] = ...) -> None: ...

class Reward(_message.Message):
    __slots__ = ("name", "value", "outcome", "detail", "answer", "steps")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    outcome: Outcome
    detail: str
    answer: str
    steps: _containers.RepeatedCompositeFieldContainer[StepReward]
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., detail: _Optional[str] = ..., answer: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[StepReward, _Mapping]]] = ...) -> None: ...

class RoutedExperts(_message.Message):
    __slots__ = ("tokens", "layers", "top_k", "id_bytes", "ids")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    ID_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    layers: int
    top_k: int
    id_bytes: int
    ids: bytes
    def __init__(self, tokens: _Optional[int] = ..., layers: _Optional[int] = ..., top_k: _Optional[int] = ..., id_bytes: _Optional[int] = ..., ids: _Optional[bytes] = ...) -> None: ...

class TeacherLogprobs(_message.Message):
    __slots__ = ("logprobs", "top_k", "top_ids", "top_logprobs")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprobs: bytes
    top_k: int
    top_ids: bytes
    top_logprobs: bytes
    def __init__(self, logprobs: _Optional[bytes] = ..., top_k: _Optional[int] = ..., top_ids: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ...) -> None: ...

class TopLogprobs(_message.Message):
    __slots__ = ("top_k", "ids", "logprobs")
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    top_k: int
    ids: bytes
    logprobs: bytes
    def __init__(self, top_k: _Optional[int] = ..., ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("token_ids", "logprobs", "mask", "spans", "finish_reason", "rewards", "text", "routed_experts", "teacher", "top_logprobs", "engines", "prompt_token_ids", "later_segments", "turn_ends")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    TEACHER_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LATER_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TURN_ENDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    mask: bytes
    spans: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    finish_reason: FinishReason
    rewards: _containers.RepeatedCompositeFieldContainer[Reward]
    text: str
    routed_experts: RoutedExperts
    teacher: TeacherLogprobs
    top_logprobs: TopLogprobs
    engines: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    later_segments: _containers.RepeatedCompositeFieldContainer[Segment]
    turn_ends: _containers.RepeatedCompositeFieldContainer[TurnEnd]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., mask: _Optional[bytes] = ..., spans: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., rewards: _Optional[_Iterable[_Union[Reward, _Mapping]]] = ..., text: _Optional[str] = ..., routed_experts: _Optional[_Union[RoutedExperts, _Mapping]] = ..., teacher: _Optional[_Union[TeacherLogprobs, _Mapping]] = ..., top_logprobs: _Optional[_Union[TopLogprobs, _Mapping]] = ..., engines: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., later_segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., turn_ends: _Optional[_Iterable[_Union[TurnEnd, _Mapping]]] = ...) -> None: ...

class TurnEnd(_message.Message):
    __slots__ = ("number", "token_end")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    number: int
    token_end: int
    def __init__(self, number: _Optional[int] = ..., token_end: _Optional[int] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("token_ids", "logprobs", "mask", "spans", "finish_reason", "prompt_token_ids", "routed_experts", "teacher", "top_logprobs", "engines", "turn_ends")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    TEACHER_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    TURN_ENDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    mask: bytes
    spans: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    finish_reason: FinishReason
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    routed_experts: RoutedExperts
    teacher: TeacherLogprobs
    top_logprobs: TopLogprobs
    engines: int
    turn_ends: _containers.RepeatedCompositeFieldContainer[TurnEnd]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., mask: _Optional[bytes] = ..., spans: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., routed_experts: _Optional[_Union[RoutedExperts, _Mapping]] = ..., teacher: _Optional[_Union[TeacherLogprobs, _Mapping]] = ..., top_logprobs: _Optional[_Union[TopLogprobs, _Mapping]] = ..., engines: _Optional[int] = ..., turn_ends: _Optional[_Iterable[_Union[TurnEnd, _Mapping]]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("group_id", "lease_epoch", "dispatch_index", "prompt", "prompt_token_ids", "completions", "worker_id", "times")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    lease_epoch: int
    dispatch_index: int
    prompt: Prompt
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    completions: _containers.RepeatedCompositeFieldContainer[Completion]
    worker_id: str
    times: GroupTimes
    def __init__(self, group_id: _Optional[str] = ..., lease_epoch: _Optional[int] = ..., dispatch_index: _Optional[int] = ..., prompt: _Optional[_Union[Prompt, _Mapping]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., completions: _Optional[_Iterable[_Union[Completion, _Mapping]]] = ..., worker_id: _Optional[str] = ..., times: _Optional[_Union[GroupTimes, _Mapping]] = ...) -> None: ...

class GroupTimes(_message.Message):
    __slots__ = ("leased", "placed", "rollouts", "sampled", "scored", "inserted")
    LEASED_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    leased: float
    placed: float
    rollouts: _containers.RepeatedCompositeFieldContainer[RolloutTime]
    sampled: float
    scored: float
    inserted: float
    def __init__(self, leased: _Optional[float] = ..., placed: _Optional[float] = ..., rollouts: _Optional[_Iterable[_Union[RolloutTime, _Mapping]]] = ..., sampled: _Optional[float] = ..., scored: _Optional[float] = ..., inserted: _Optional[float] = ...) -> None: ...

class RolloutTime(_message.Message):
    __slots__ = ("rollout", "first_token")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    rollout: str
    first_token: float
    def __init__(self, rollout: _Optional[str] = ..., first_token: _Optional[float] = ...) -> None: ...
