import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from ladr.v1 import fleet_pb2 as _fleet_pb2
from ladr.v1 import generation_pb2 as _generation_pb2
from ladr.v1 import generations_pb2 as _generations_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScaleReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCALE_REASON_UNSPECIFIED: _ClassVar[ScaleReason]
    SCALE_REASON_STEADY: _ClassVar[ScaleReason]
    SCALE_REASON_WAITING: _ClassVar[ScaleReason]
    SCALE_REASON_SLO: _ClassVar[ScaleReason]
    SCALE_REASON_IDLE: _ClassVar[ScaleReason]
    SCALE_REASON_COOLING: _ClassVar[ScaleReason]
    SCALE_REASON_UNEVEN: _ClassVar[ScaleReason]
SCALE_REASON_UNSPECIFIED: ScaleReason
SCALE_REASON_STEADY: ScaleReason
SCALE_REASON_WAITING: ScaleReason
SCALE_REASON_SLO: ScaleReason
SCALE_REASON_IDLE: ScaleReason
SCALE_REASON_COOLING: ScaleReason
SCALE_REASON_UNEVEN: ScaleReason

class WatchRoutesRequest(_message.Message):
    __slots__ = ("model", "reports", "changes_only")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_ONLY_FIELD_NUMBER: _ClassVar[int]
    model: str
    reports: bool
    changes_only: bool
    def __init__(self, model: _Optional[str] = ..., reports: bool = ..., changes_only: bool = ...) -> None: ...

class RouteTable(_message.Message):
    __slots__ = ("version", "computed_at", "policy", "degraded", "alpha", "beta", "routes", "fastest_latency", "partial", "picking")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_AT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    BETA_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    FASTEST_LATENCY_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    PICKING_FIELD_NUMBER: _ClassVar[int]
    version: int
    computed_at: _timestamp_pb2.Timestamp
    policy: str
    degraded: bool
    alpha: float
    beta: float
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    fastest_latency: _duration_pb2.Duration
    partial: bool
    picking: Picking
    def __init__(self, version: _Optional[int] = ..., computed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., policy: _Optional[str] = ..., degraded: bool = ..., alpha: _Optional[float] = ..., beta: _Optional[float] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ..., fastest_latency: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., partial: bool = ..., picking: _Optional[_Union[Picking, _Mapping]] = ...) -> None: ...

class Picking(_message.Message):
    __slots__ = ("parameters", "aliases", "default_model", "ttl", "theta", "ask_router")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MODEL_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    THETA_FIELD_NUMBER: _ClassVar[int]
    ASK_ROUTER_FIELD_NUMBER: _ClassVar[int]
    parameters: _containers.ScalarMap[str, float]
    aliases: _containers.ScalarMap[str, str]
    default_model: str
    ttl: _duration_pb2.Duration
    theta: float
    ask_router: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parameters: _Optional[_Mapping[str, float]] = ..., aliases: _Optional[_Mapping[str, str]] = ..., default_model: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., theta: _Optional[float] = ..., ask_router: _Optional[_Iterable[str]] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("worker_id", "incarnation", "address", "models", "weight", "score", "latency", "queue", "slots", "running", "queued", "time_per_output_token", "depth", "age", "ineligible_reason", "report")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    TIME_PER_OUTPUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    INELIGIBLE_REASON_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    address: str
    models: _containers.RepeatedScalarFieldContainer[str]
    weight: float
    score: float
    latency: _duration_pb2.Duration
    queue: float
    slots: int
    running: int
    queued: int
    time_per_output_token: _duration_pb2.Duration
    depth: int
    age: _duration_pb2.Duration
    ineligible_reason: str
    report: _fleet_pb2.WorkerReport
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., weight: _Optional[float] = ..., score: _Optional[float] = ..., latency: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., queue: _Optional[float] = ..., slots: _Optional[int] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., time_per_output_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., depth: _Optional[int] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ineligible_reason: _Optional[str] = ..., report: _Optional[_Union[_fleet_pb2.WorkerReport, _Mapping]] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "model")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    model: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers", "next_page_token")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    next_page_token: str
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetWorkerRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "undo")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    undo: bool
    def __init__(self, worker_id: _Optional[str] = ..., undo: bool = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("report", "age", "eligible", "ineligible_reason", "in_flight", "route")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    INELIGIBLE_REASON_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    report: _fleet_pb2.WorkerReport
    age: _duration_pb2.Duration
    eligible: bool
    ineligible_reason: str
    in_flight: int
    route: Route
    def __init__(self, report: _Optional[_Union[_fleet_pb2.WorkerReport, _Mapping]] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., eligible: bool = ..., ineligible_reason: _Optional[str] = ..., in_flight: _Optional[int] = ..., route: _Optional[_Union[Route, _Mapping]] = ...) -> None: ...

class WatchScaleRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ScaleAdvice(_message.Message):
    __slots__ = ("model", "wanted_workers", "present_workers", "reason", "waiting", "slo_miss_ratio", "score_variation", "utilization", "computed_at")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WANTED_WORKERS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_WORKERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SLO_MISS_RATIO_FIELD_NUMBER: _ClassVar[int]
    SCORE_VARIATION_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    wanted_workers: int
    present_workers: int
    reason: ScaleReason
    waiting: _duration_pb2.Duration
    slo_miss_ratio: float
    score_variation: float
    utilization: float
    computed_at: _timestamp_pb2.Timestamp
    def __init__(self, model: _Optional[str] = ..., wanted_workers: _Optional[int] = ..., present_workers: _Optional[int] = ..., reason: _Optional[_Union[ScaleReason, str]] = ..., waiting: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., slo_miss_ratio: _Optional[float] = ..., score_variation: _Optional[float] = ..., utilization: _Optional[float] = ..., computed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetSplitRequest(_message.Message):
    __slots__ = ("alias",)
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    alias: str
    def __init__(self, alias: _Optional[str] = ...) -> None: ...

class SetSplitRequest(_message.Message):
    __slots__ = ("alias", "shares")
    class SharesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    alias: str
    shares: _containers.ScalarMap[str, float]
    def __init__(self, alias: _Optional[str] = ..., shares: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("alias", "shares", "tallies")
    class SharesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    TALLIES_FIELD_NUMBER: _ClassVar[int]
    alias: str
    shares: _containers.ScalarMap[str, float]
    tallies: _containers.RepeatedCompositeFieldContainer[ModelTally]
    def __init__(self, alias: _Optional[str] = ..., shares: _Optional[_Mapping[str, float]] = ..., tallies: _Optional[_Iterable[_Union[ModelTally, _Mapping]]] = ...) -> None: ...

class ModelTally(_message.Message):
    __slots__ = ("model", "succeeded_total", "failed_total", "time_to_first_token", "time_to_first_token_logs", "time_per_output_token_logs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FAILED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_LOGS_FIELD_NUMBER: _ClassVar[int]
    TIME_PER_OUTPUT_TOKEN_LOGS_FIELD_NUMBER: _ClassVar[int]
    model: str
    succeeded_total: int
    failed_total: int
    time_to_first_token: _fleet_pb2.LatencyTotals
    time_to_first_token_logs: LogTotals
    time_per_output_token_logs: LogTotals
    def __init__(self, model: _Optional[str] = ..., succeeded_total: _Optional[int] = ..., failed_total: _Optional[int] = ..., time_to_first_token: _Optional[_Union[_fleet_pb2.LatencyTotals, _Mapping]] = ..., time_to_first_token_logs: _Optional[_Union[LogTotals, _Mapping]] = ..., time_per_output_token_logs: _Optional[_Union[LogTotals, _Mapping]] = ...) -> None: ...

class LogTotals(_message.Message):
    __slots__ = ("count", "sum", "sum_of_squares")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    SUM_OF_SQUARES_FIELD_NUMBER: _ClassVar[int]
    count: int
    sum: float
    sum_of_squares: float
    def __init__(self, count: _Optional[int] = ..., sum: _Optional[float] = ..., sum_of_squares: _Optional[float] = ...) -> None: ...
