from slipstream.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenSequence(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReadTokensRequest(_message.Message):
    __slots__ = ("vocabulary", "vocabulary_size", "temperature", "top_k", "prompt_token_ids", "completions")
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    vocabulary: str
    vocabulary_size: int
    temperature: float
    top_k: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    completions: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    def __init__(self, vocabulary: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., completions: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ...) -> None: ...

class ReadTokensResponse(_message.Message):
    __slots__ = ("completions", "fingerprint")
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    completions: _containers.RepeatedCompositeFieldContainer[_types_pb2.TeacherLogprobs]
    fingerprint: str
    def __init__(self, completions: _Optional[_Iterable[_Union[_types_pb2.TeacherLogprobs, _Mapping]]] = ..., fingerprint: _Optional[str] = ...) -> None: ...
