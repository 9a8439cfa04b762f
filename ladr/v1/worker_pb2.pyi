from ladr.v1 import fleet_pb2 as _fleet_pb2
from ladr.v1 import generation_pb2 as _generation_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("name", "source", "context_tokens", "draft", "draft_tokens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    context_tokens: int
    draft: str
    draft_tokens: int
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., context_tokens: _Optional[int] = ..., draft: _Optional[str] = ..., draft_tokens: _Optional[int] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("undo",)
    UNDO_FIELD_NUMBER: _ClassVar[int]
    undo: bool
    def __init__(self, undo: bool = ...) -> None: ...
