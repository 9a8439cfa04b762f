import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from ladr.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GENERATION_STATE_UNSPECIFIED: _ClassVar[GenerationState]
    GENERATION_STATE_SCHEDULED: _ClassVar[GenerationState]
    GENERATION_STATE_QUEUED: _ClassVar[GenerationState]
    GENERATION_STATE_RUNNING: _ClassVar[GenerationState]
    GENERATION_STATE_SUCCEEDED: _ClassVar[GenerationState]
    GENERATION_STATE_DEAD: _ClassVar[GenerationState]
    GENERATION_STATE_CANCELLED: _ClassVar[GenerationState]
    GENERATION_STATE_EXPIRED: _ClassVar[GenerationState]
GENERATION_STATE_UNSPECIFIED: GenerationState
GENERATION_STATE_SCHEDULED: GenerationState
GENERATION_STATE_QUEUED: GenerationState
GENERATION_STATE_RUNNING: GenerationState
GENERATION_STATE_SUCCEEDED: GenerationState
GENERATION_STATE_DEAD: GenerationState
GENERATION_STATE_CANCELLED: GenerationState
GENERATION_STATE_EXPIRED: GenerationState

class Generation(_message.Message):
    __slots__ = ("request_id", "state", "model", "priority", "attempts", "redeliveries", "created_at", "started_at", "finished_at", "not_before", "expires_at", "result", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REDELIVERIES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    NOT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: GenerationState
    model: str
    priority: _generation_pb2.Priority
    attempts: int
    redeliveries: int
    created_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    not_before: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    result: GenerationResult
    error: GenerationError
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[_Union[GenerationState, str]] = ..., model: _Optional[str] = ..., priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., attempts: _Optional[int] = ..., redeliveries: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., not_before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., result: _Optional[_Union[GenerationResult, _Mapping]] = ..., error: _Optional[_Union[GenerationError, _Mapping]] = ...) -> None: ...

class GenerationResult(_message.Message):
    __slots__ = ("text", "token_ids", "finished", "model", "worker_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finished: _generation_pb2.Finished
    model: str
    worker_id: str
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., finished: _Optional[_Union[_generation_pb2.Finished, _Mapping]] = ..., model: _Optional[str] = ..., worker_id: _Optional[str] = ...) -> None: ...

class GenerationChunk(_message.Message):
    __slots__ = ("attempt", "deltas")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    deltas: _containers.RepeatedCompositeFieldContainer[_generation_pb2.Delta]
    def __init__(self, attempt: _Optional[int] = ..., deltas: _Optional[_Iterable[_Union[_generation_pb2.Delta, _Mapping]]] = ...) -> None: ...

class GenerationError(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class SubmitGenerationRequest(_message.Message):
    __slots__ = ("request", "request_id", "priority", "not_before", "expire_after")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NOT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AFTER_FIELD_NUMBER: _ClassVar[int]
    request: _generation_pb2.GenerateRequest
    request_id: str
    priority: _generation_pb2.Priority
    not_before: _timestamp_pb2.Timestamp
    expire_after: _duration_pb2.Duration
    def __init__(self, request: _Optional[_Union[_generation_pb2.GenerateRequest, _Mapping]] = ..., request_id: _Optional[str] = ..., priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., not_before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SubmitGenerationsResponse(_message.Message):
    __slots__ = ("accepted", "existing", "refused", "refusals")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    EXISTING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    existing: int
    refused: int
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, accepted: _Optional[int] = ..., existing: _Optional[int] = ..., refused: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("index", "request_id", "error")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    index: int
    request_id: str
    error: GenerationError
    def __init__(self, index: _Optional[int] = ..., request_id: _Optional[str] = ..., error: _Optional[_Union[GenerationError, _Mapping]] = ...) -> None: ...

class GetGenerationRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class WatchGenerationRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "offset")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    offset: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class WatchGenerationResponse(_message.Message):
    __slots__ = ("generation", "delta", "attempt")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    generation: Generation
    delta: _generation_pb2.Delta
    attempt: int
    def __init__(self, generation: _Optional[_Union[Generation, _Mapping]] = ..., delta: _Optional[_Union[_generation_pb2.Delta, _Mapping]] = ..., attempt: _Optional[int] = ...) -> None: ...

class CancelGenerationRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class RequeueGenerationRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class DeleteGenerationRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ListGenerationsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "state", "model")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    state: GenerationState
    model: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., state: _Optional[_Union[GenerationState, str]] = ..., model: _Optional[str] = ...) -> None: ...

class ListGenerationsResponse(_message.Message):
    __slots__ = ("generations", "next_page_token")
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    generations: _containers.RepeatedCompositeFieldContainer[Generation]
    next_page_token: str
    def __init__(self, generations: _Optional[_Iterable[_Union[Generation, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
