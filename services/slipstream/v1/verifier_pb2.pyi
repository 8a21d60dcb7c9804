from slipstream.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProgramEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROGRAM_END_UNSPECIFIED: _ClassVar[ProgramEnd]
    PROGRAM_END_FINISHED: _ClassVar[ProgramEnd]
    PROGRAM_END_RAISED: _ClassVar[ProgramEnd]
    PROGRAM_END_EXITED: _ClassVar[ProgramEnd]
    PROGRAM_END_LATE: _ClassVar[ProgramEnd]
    PROGRAM_END_OUTPUT: _ClassVar[ProgramEnd]
    PROGRAM_END_DISK: _ClassVar[ProgramEnd]
    PROGRAM_END_THREADS: _ClassVar[ProgramEnd]
PROGRAM_END_UNSPECIFIED: ProgramEnd
PROGRAM_END_FINISHED: ProgramEnd
PROGRAM_END_RAISED: ProgramEnd
PROGRAM_END_EXITED: ProgramEnd
PROGRAM_END_LATE: ProgramEnd
PROGRAM_END_OUTPUT: ProgramEnd
PROGRAM_END_DISK: ProgramEnd
PROGRAM_END_THREADS: ProgramEnd

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

class RunProgramRequest(_message.Message):
    __slots__ = ("code", "earlier", "seconds", "memory_mib", "group")
    CODE_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    code: str
    earlier: _containers.RepeatedScalarFieldContainer[str]
    seconds: float
    memory_mib: int
    group: str
    def __init__(self, code: _Optional[str] = ..., earlier: _Optional[_Iterable[str]] = ..., seconds: _Optional[float] = ..., memory_mib: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class RunProgramResponse(_message.Message):
    __slots__ = ("output", "end", "digests", "seconds")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    output: str
    end: ProgramEnd
    digests: _containers.RepeatedScalarFieldContainer[str]
    seconds: float
    def __init__(self, output: _Optional[str] = ..., end: _Optional[_Union[ProgramEnd, str]] = ..., digests: _Optional[_Iterable[str]] = ..., seconds: _Optional[float] = ...) -> None: ...
