from slipstream.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Answer(_message.Message):
    __slots__ = ("text", "tokens", "finish_reason")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: int
    finish_reason: _types_pb2.FinishReason
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[int] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("prompt", "answers")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    prompt: _types_pb2.Prompt
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    def __init__(self, prompt: _Optional[_Union[_types_pb2.Prompt, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ...) -> None: ...

class RewardVector(_message.Message):
    __slots__ = ("rewards",)
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    rewards: _containers.RepeatedCompositeFieldContainer[_types_pb2.Reward]
    def __init__(self, rewards: _Optional[_Iterable[_Union[_types_pb2.Reward, _Mapping]]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("vectors",)
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    vectors: _containers.RepeatedCompositeFieldContainer[RewardVector]
    def __init__(self, vectors: _Optional[_Iterable[_Union[RewardVector, _Mapping]]] = ...) -> None: ...
