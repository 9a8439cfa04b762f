import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DistillState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISTILL_STATE_UNSPECIFIED: _ClassVar[DistillState]
    DISTILL_STATE_QUEUED: _ClassVar[DistillState]
    DISTILL_STATE_RUNNING: _ClassVar[DistillState]
    DISTILL_STATE_SUCCEEDED: _ClassVar[DistillState]
    DISTILL_STATE_FAILED: _ClassVar[DistillState]
    DISTILL_STATE_CANCELLED: _ClassVar[DistillState]

class DistillPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISTILL_PHASE_UNSPECIFIED: _ClassVar[DistillPhase]
    DISTILL_PHASE_PREPARE: _ClassVar[DistillPhase]
    DISTILL_PHASE_TEACH: _ClassVar[DistillPhase]
    DISTILL_PHASE_TRAIN: _ClassVar[DistillPhase]
    DISTILL_PHASE_SAVE: _ClassVar[DistillPhase]
    DISTILL_PHASE_EVALUATE: _ClassVar[DistillPhase]
    DISTILL_PHASE_ANSWER: _ClassVar[DistillPhase]
    DISTILL_PHASE_QUANTIZE: _ClassVar[DistillPhase]

class RolloutState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLOUT_STATE_UNSPECIFIED: _ClassVar[RolloutState]
    ROLLOUT_STATE_LOADING: _ClassVar[RolloutState]
    ROLLOUT_STATE_RUNNING: _ClassVar[RolloutState]
    ROLLOUT_STATE_SUCCEEDED: _ClassVar[RolloutState]
    ROLLOUT_STATE_ROLLED_BACK: _ClassVar[RolloutState]
    ROLLOUT_STATE_CANCELLED: _ClassVar[RolloutState]
DISTILL_STATE_UNSPECIFIED: DistillState
DISTILL_STATE_QUEUED: DistillState
DISTILL_STATE_RUNNING: DistillState
DISTILL_STATE_SUCCEEDED: DistillState
DISTILL_STATE_FAILED: DistillState
DISTILL_STATE_CANCELLED: DistillState
DISTILL_PHASE_UNSPECIFIED: DistillPhase
DISTILL_PHASE_PREPARE: DistillPhase
DISTILL_PHASE_TEACH: DistillPhase
DISTILL_PHASE_TRAIN: DistillPhase
DISTILL_PHASE_SAVE: DistillPhase
DISTILL_PHASE_EVALUATE: DistillPhase
DISTILL_PHASE_ANSWER: DistillPhase
DISTILL_PHASE_QUANTIZE: DistillPhase
ROLLOUT_STATE_UNSPECIFIED: RolloutState
ROLLOUT_STATE_LOADING: RolloutState
ROLLOUT_STATE_RUNNING: RolloutState
ROLLOUT_STATE_SUCCEEDED: RolloutState
ROLLOUT_STATE_ROLLED_BACK: RolloutState
ROLLOUT_STATE_CANCELLED: RolloutState

class DistillSpec(_message.Message):
    __slots__ = ("teacher", "student", "data", "objective", "training", "evaluation", "int8")
    TEACHER_FIELD_NUMBER: _ClassVar[int]
    STUDENT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    INT8_FIELD_NUMBER: _ClassVar[int]
    teacher: str
    student: DistillStudent
    data: DistillData
    objective: DistillObjective
    training: DistillTraining
    evaluation: DistillEvaluation
    int8: DistillInt8
    def __init__(self, teacher: _Optional[str] = ..., student: _Optional[_Union[DistillStudent, _Mapping]] = ..., data: _Optional[_Union[DistillData, _Mapping]] = ..., objective: _Optional[_Union[DistillObjective, _Mapping]] = ..., training: _Optional[_Union[DistillTraining, _Mapping]] = ..., evaluation: _Optional[_Union[DistillEvaluation, _Mapping]] = ..., int8: _Optional[_Union[DistillInt8, _Mapping]] = ...) -> None: ...

class DistillStudent(_message.Message):
    __slots__ = ("kind", "layers", "choice", "layer_indices", "feed_forward", "heads", "source")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    LAYER_INDICES_FIELD_NUMBER: _ClassVar[int]
    FEED_FORWARD_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    layers: int
    choice: str
    layer_indices: _containers.RepeatedScalarFieldContainer[int]
    feed_forward: float
    heads: float
    source: str
    def __init__(self, kind: _Optional[str] = ..., layers: _Optional[int] = ..., choice: _Optional[str] = ..., layer_indices: _Optional[_Iterable[int]] = ..., feed_forward: _Optional[float] = ..., heads: _Optional[float] = ..., source: _Optional[str] = ...) -> None: ...

class DistillData(_message.Message):
    __slots__ = ("path", "sequence_tokens", "score_prompts", "holdout", "answers_from", "answer_tokens")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORE_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FROM_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    path: str
    sequence_tokens: int
    score_prompts: bool
    holdout: float
    answers_from: str
    answer_tokens: int
    def __init__(self, path: _Optional[str] = ..., sequence_tokens: _Optional[int] = ..., score_prompts: bool = ..., holdout: _Optional[float] = ..., answers_from: _Optional[str] = ..., answer_tokens: _Optional[int] = ...) -> None: ...

class DistillObjective(_message.Message):
    __slots__ = ("temperature", "task_weight", "kl_weight", "attention_weight", "divergence", "jsd_beta", "on_policy", "hidden_weight", "teacher_top_k", "refusal_weight")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TASK_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    KL_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    JSD_BETA_FIELD_NUMBER: _ClassVar[int]
    ON_POLICY_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TEACHER_TOP_K_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    task_weight: float
    kl_weight: float
    attention_weight: float
    divergence: str
    jsd_beta: float
    on_policy: float
    hidden_weight: float
    teacher_top_k: int
    refusal_weight: float
    def __init__(self, temperature: _Optional[float] = ..., task_weight: _Optional[float] = ..., kl_weight: _Optional[float] = ..., attention_weight: _Optional[float] = ..., divergence: _Optional[str] = ..., jsd_beta: _Optional[float] = ..., on_policy: _Optional[float] = ..., hidden_weight: _Optional[float] = ..., teacher_top_k: _Optional[int] = ..., refusal_weight: _Optional[float] = ...) -> None: ...

class DistillTraining(_message.Message):
    __slots__ = ("steps", "batch_sequences", "micro_sequences", "learning_rate", "warmup_steps", "weight_decay", "clip_norm", "seed", "dtype", "device", "processes", "threads", "checkpoint_steps")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MICRO_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_STEPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    batch_sequences: int
    micro_sequences: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    clip_norm: float
    seed: int
    dtype: str
    device: str
    processes: int
    threads: int
    checkpoint_steps: int
    def __init__(self, steps: _Optional[int] = ..., batch_sequences: _Optional[int] = ..., micro_sequences: _Optional[int] = ..., learning_rate: _Optional[float] = ..., warmup_steps: _Optional[int] = ..., weight_decay: _Optional[float] = ..., clip_norm: _Optional[float] = ..., seed: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., processes: _Optional[int] = ..., threads: _Optional[int] = ..., checkpoint_steps: _Optional[int] = ...) -> None: ...

class DistillEvaluation(_message.Message):
    __slots__ = ("tokens", "battles", "judge", "judge_model", "answer_tokens", "refusal_pairs")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATTLES_FIELD_NUMBER: _ClassVar[int]
    JUDGE_FIELD_NUMBER: _ClassVar[int]
    JUDGE_MODEL_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_PAIRS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    battles: int
    judge: str
    judge_model: str
    answer_tokens: int
    refusal_pairs: int
    def __init__(self, tokens: _Optional[int] = ..., battles: _Optional[int] = ..., judge: _Optional[str] = ..., judge_model: _Optional[str] = ..., answer_tokens: _Optional[int] = ..., refusal_pairs: _Optional[int] = ...) -> None: ...

class DistillInt8(_message.Message):
    __slots__ = ("kind", "dialogues", "threshold", "goal", "repairs", "publish_above")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIALOGUES_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    REPAIRS_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_ABOVE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    dialogues: int
    threshold: float
    goal: float
    repairs: _containers.RepeatedScalarFieldContainer[str]
    publish_above: bool
    def __init__(self, kind: _Optional[str] = ..., dialogues: _Optional[int] = ..., threshold: _Optional[float] = ..., goal: _Optional[float] = ..., repairs: _Optional[_Iterable[str]] = ..., publish_above: bool = ...) -> None: ...

class DistillJob(_message.Message):
    __slots__ = ("id", "request_id", "state", "spec", "progress", "error", "created_at", "started_at", "finished_at", "starts", "student_source", "figures", "int8_source")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    STUDENT_SOURCE_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    INT8_SOURCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    request_id: str
    state: DistillState
    spec: DistillSpec
    progress: DistillProgress
    error: DistillError
    created_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    starts: int
    student_source: str
    figures: _containers.ScalarMap[str, float]
    int8_source: str
    def __init__(self, id: _Optional[str] = ..., request_id: _Optional[str] = ..., state: _Optional[_Union[DistillState, str]] = ..., spec: _Optional[_Union[DistillSpec, _Mapping]] = ..., progress: _Optional[_Union[DistillProgress, _Mapping]] = ..., error: _Optional[_Union[DistillError, _Mapping]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., starts: _Optional[int] = ..., student_source: _Optional[str] = ..., figures: _Optional[_Mapping[str, float]] = ..., int8_source: _Optional[str] = ...) -> None: ...

class DistillProgress(_message.Message):
    __slots__ = ("phase", "step", "total_steps", "tokens", "losses", "figures", "tokens_per_second", "remaining", "memory_bytes", "time", "start")
    class LossesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    phase: DistillPhase
    step: int
    total_steps: int
    tokens: int
    losses: _containers.ScalarMap[str, float]
    figures: _containers.ScalarMap[str, float]
    tokens_per_second: float
    remaining: _duration_pb2.Duration
    memory_bytes: int
    time: _timestamp_pb2.Timestamp
    start: int
    def __init__(self, phase: _Optional[_Union[DistillPhase, str]] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., tokens: _Optional[int] = ..., losses: _Optional[_Mapping[str, float]] = ..., figures: _Optional[_Mapping[str, float]] = ..., tokens_per_second: _Optional[float] = ..., remaining: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., memory_bytes: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., start: _Optional[int] = ...) -> None: ...

class DistillError(_message.Message):
    __slots__ = ("reason", "message", "log")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    log: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., log: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateDistillJobRequest(_message.Message):
    __slots__ = ("spec", "request_id")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    spec: DistillSpec
    request_id: str
    def __init__(self, spec: _Optional[_Union[DistillSpec, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class GetDistillJobRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListDistillJobsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "state")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    state: DistillState
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., state: _Optional[_Union[DistillState, str]] = ...) -> None: ...

class ListDistillJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[DistillJob]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[DistillJob, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchDistillJobRequest(_message.Message):
    __slots__ = ("id", "from_start")
    ID_FIELD_NUMBER: _ClassVar[int]
    FROM_START_FIELD_NUMBER: _ClassVar[int]
    id: str
    from_start: bool
    def __init__(self, id: _Optional[str] = ..., from_start: bool = ...) -> None: ...

class WatchDistillJobResponse(_message.Message):
    __slots__ = ("job", "progress")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    job: DistillJob
    progress: DistillProgress
    def __init__(self, job: _Optional[_Union[DistillJob, _Mapping]] = ..., progress: _Optional[_Union[DistillProgress, _Mapping]] = ...) -> None: ...

class CancelDistillJobRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ResumeDistillJobRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class DeleteDistillJobRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class GetDistillReportRequest(_message.Message):
    __slots__ = ("id", "html")
    ID_FIELD_NUMBER: _ClassVar[int]
    HTML_FIELD_NUMBER: _ClassVar[int]
    id: str
    html: bool
    def __init__(self, id: _Optional[str] = ..., html: bool = ...) -> None: ...

class DistillReport(_message.Message):
    __slots__ = ("json", "html")
    JSON_FIELD_NUMBER: _ClassVar[int]
    HTML_FIELD_NUMBER: _ClassVar[int]
    json: str
    html: str
    def __init__(self, json: _Optional[str] = ..., html: _Optional[str] = ...) -> None: ...

class PublishStudentRequest(_message.Message):
    __slots__ = ("id", "name", "model", "workers", "int8", "stages", "stage_time", "stage_requests", "stage_timeout", "error_margin", "latency_ratio", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    INT8_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    STAGE_TIME_FIELD_NUMBER: _ClassVar[int]
    STAGE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    STAGE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_MARGIN_FIELD_NUMBER: _ClassVar[int]
    LATENCY_RATIO_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    model: str
    workers: _containers.RepeatedScalarFieldContainer[str]
    int8: bool
    stages: _containers.RepeatedScalarFieldContainer[float]
    stage_time: _duration_pb2.Duration
    stage_requests: int
    stage_timeout: _duration_pb2.Duration
    error_margin: float
    latency_ratio: float
    request_id: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., model: _Optional[str] = ..., workers: _Optional[_Iterable[str]] = ..., int8: bool = ..., stages: _Optional[_Iterable[float]] = ..., stage_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., stage_requests: _Optional[int] = ..., stage_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., error_margin: _Optional[float] = ..., latency_ratio: _Optional[float] = ..., request_id: _Optional[str] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("id", "request", "state", "stage", "share", "student", "others", "reason", "created_at", "changed_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    STUDENT_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    id: str
    request: PublishStudentRequest
    state: RolloutState
    stage: int
    share: float
    student: RolloutTally
    others: RolloutTally
    reason: str
    created_at: _timestamp_pb2.Timestamp
    changed_at: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., request: _Optional[_Union[PublishStudentRequest, _Mapping]] = ..., state: _Optional[_Union[RolloutState, str]] = ..., stage: _Optional[int] = ..., share: _Optional[float] = ..., student: _Optional[_Union[RolloutTally, _Mapping]] = ..., others: _Optional[_Union[RolloutTally, _Mapping]] = ..., reason: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., changed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RolloutTally(_message.Message):
    __slots__ = ("succeeded", "failed", "time_to_first_token", "time_per_output_token")
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIME_PER_OUTPUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    succeeded: int
    failed: int
    time_to_first_token: _duration_pb2.Duration
    time_per_output_token: _duration_pb2.Duration
    def __init__(self, succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., time_to_first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., time_per_output_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetRolloutRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListRolloutsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRolloutsResponse(_message.Message):
    __slots__ = ("rollouts",)
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[Rollout]
    def __init__(self, rollouts: _Optional[_Iterable[_Union[Rollout, _Mapping]]] = ...) -> None: ...

class WatchRolloutRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CancelRolloutRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...
