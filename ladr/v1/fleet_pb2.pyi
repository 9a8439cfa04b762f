import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_STARTING: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_STOPPED: _ClassVar[WorkerState]

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_READY: _ClassVar[ModelState]
    MODEL_STATE_FAILED: _ClassVar[ModelState]
    MODEL_STATE_UNLOADED: _ClassVar[ModelState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_STARTING: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_STOPPED: WorkerState
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_READY: ModelState
MODEL_STATE_FAILED: ModelState
MODEL_STATE_UNLOADED: ModelState

class WorkerReport(_message.Message):
    __slots__ = ("worker_id", "incarnation", "sequence", "address", "state", "models", "engine", "slots", "running", "queued", "queue_limit", "time_to_first_token", "time_per_output_token", "end_to_end", "tokens_per_second", "kv_used_ratio", "gpus", "drafting", "stages", "finished_total", "failed_total", "cancelled_total", "loop_lag", "load_revision", "tokens_total", "prompt_tokens_total", "queued_prompt_tokens", "accepted_total", "reported_at")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIME_PER_OUTPUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    END_TO_END_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    KV_USED_RATIO_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FAILED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOOP_LAG_FIELD_NUMBER: _ClassVar[int]
    LOAD_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REPORTED_AT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    sequence: int
    address: str
    state: WorkerState
    models: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    engine: str
    slots: int
    running: int
    queued: int
    queue_limit: int
    time_to_first_token: LatencyTotals
    time_per_output_token: LatencyTotals
    end_to_end: LatencyTotals
    tokens_per_second: float
    kv_used_ratio: float
    gpus: _containers.RepeatedCompositeFieldContainer[GpuMemory]
    drafting: DraftTotals
    stages: _containers.RepeatedCompositeFieldContainer[StageStatus]
    finished_total: int
    failed_total: int
    cancelled_total: int
    loop_lag: _duration_pb2.Duration
    load_revision: int
    tokens_total: int
    prompt_tokens_total: int
    queued_prompt_tokens: int
    accepted_total: int
    reported_at: _timestamp_pb2.Timestamp
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., sequence: _Optional[int] = ..., address: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., models: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ..., engine: _Optional[str] = ..., slots: _Optional[int] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., queue_limit: _Optional[int] = ..., time_to_first_token: _Optional[_Union[LatencyTotals, _Mapping]] = ..., time_per_output_token: _Optional[_Union[LatencyTotals, _Mapping]] = ..., end_to_end: _Optional[_Union[LatencyTotals, _Mapping]] = ..., tokens_per_second: _Optional[float] = ..., kv_used_ratio: _Optional[float] = ..., gpus: _Optional[_Iterable[_Union[GpuMemory, _Mapping]]] = ..., drafting: _Optional[_Union[DraftTotals, _Mapping]] = ..., stages: _Optional[_Iterable[_Union[StageStatus, _Mapping]]] = ..., finished_total: _Optional[int] = ..., failed_total: _Optional[int] = ..., cancelled_total: _Optional[int] = ..., loop_lag: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., load_revision: _Optional[int] = ..., tokens_total: _Optional[int] = ..., prompt_tokens_total: _Optional[int] = ..., queued_prompt_tokens: _Optional[int] = ..., accepted_total: _Optional[int] = ..., reported_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("name", "state", "context_tokens", "load_progress", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOAD_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: ModelState
    context_tokens: int
    load_progress: float
    error: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., context_tokens: _Optional[int] = ..., load_progress: _Optional[float] = ..., error: _Optional[str] = ...) -> None: ...

class LatencyTotals(_message.Message):
    __slots__ = ("count", "sum")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    count: int
    sum: _duration_pb2.Duration
    def __init__(self, count: _Optional[int] = ..., sum: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DraftTotals(_message.Message):
    __slots__ = ("drafted_tokens", "accepted_tokens", "paused")
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    drafted_tokens: int
    accepted_tokens: int
    paused: bool
    def __init__(self, drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., paused: bool = ...) -> None: ...

class GpuMemory(_message.Message):
    __slots__ = ("index", "used_bytes", "total_bytes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    index: int
    used_bytes: int
    total_bytes: int
    def __init__(self, index: _Optional[int] = ..., used_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class StageStatus(_message.Message):
    __slots__ = ("name", "queued", "latency")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    name: str
    queued: int
    latency: LatencyTotals
    def __init__(self, name: _Optional[str] = ..., queued: _Optional[int] = ..., latency: _Optional[_Union[LatencyTotals, _Mapping]] = ...) -> None: ...
