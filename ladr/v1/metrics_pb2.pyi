import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from ladr.v1 import fleet_pb2 as _fleet_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishAck(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FleetUpdate(_message.Message):
    __slots__ = ("workers", "gone", "degraded")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[FleetEntry]
    gone: _containers.RepeatedCompositeFieldContainer[WorkerGone]
    degraded: bool
    def __init__(self, workers: _Optional[_Iterable[_Union[FleetEntry, _Mapping]]] = ..., gone: _Optional[_Iterable[_Union[WorkerGone, _Mapping]]] = ..., degraded: bool = ...) -> None: ...

class FleetEntry(_message.Message):
    __slots__ = ("report", "age")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    report: _fleet_pb2.WorkerReport
    age: _duration_pb2.Duration
    def __init__(self, report: _Optional[_Union[_fleet_pb2.WorkerReport, _Mapping]] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WorkerGone(_message.Message):
    __slots__ = ("worker_id", "incarnation")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...
