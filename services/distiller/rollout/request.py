"""What was asked for, with every default filled in, or why it cannot be."""

from __future__ import annotations

import itertools
import math
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from ladr.errors import InvalidRequest
from ladr.request import MAX_ID_BYTES
from ladr.v1 import distiller_pb2 as pb
from services.distiller.rollout.core import Rules

MAX_STAGES = 16
MAX_WORKERS = 1000
_STAGES = (0.05, 0.5, 1.0)
_STAGE_TIME = timedelta(minutes=5)
_STAGE_TIMEOUT = timedelta(hours=24)
_LONGEST = timedelta(days=365)


def whole(asked: pb.PublishStudentRequest) -> pb.PublishStudentRequest:
    """With the defaults that need nobody else: all but the workers. Raises: InvalidRequest: names the field."""
    made = pb.PublishStudentRequest()
    made.CopyFrom(asked)
    _text(made.name, "name", least=1)
    made.model = made.model or student_name(made)
    if not asked.model and len(made.model.encode()) > MAX_ID_BYTES:
        raise InvalidRequest(
            f"`name` is too long to make the student's out of it: give one of {MAX_ID_BYTES} bytes at most",
            field="model",
        )
    _text(made.model, "model", least=1)
    _text(made.request_id, "request_id")
    if len(made.workers) > MAX_WORKERS or len(set(made.workers)) != len(made.workers):
        raise InvalidRequest(f"give {MAX_WORKERS} workers at most, each of them once", field="workers")
    if not made.stages:
        made.stages.extend(_STAGES)
    _check_stages(list(made.stages))
    _default(made.stage_time, asked.HasField("stage_time"), _STAGE_TIME, "stage_time")
    _default(made.stage_timeout, asked.HasField("stage_timeout"), _STAGE_TIMEOUT, "stage_timeout")
    if made.stage_timeout.ToTimedelta() < made.stage_time.ToTimedelta():
        raise InvalidRequest("a stage cannot end before stage_time: give a longer stage_timeout", field="stage_timeout")
    if not asked.HasField("stage_requests"):
        made.stage_requests = 50
    if not asked.HasField("error_margin"):
        made.error_margin = 0.02
    if not asked.HasField("latency_ratio"):
        made.latency_ratio = 1.5
    if not 0 <= made.error_margin <= 1:
        raise InvalidRequest("give 0 to 1", field="error_margin")
    if not (made.latency_ratio > 0 and math.isfinite(made.latency_ratio)):
        raise InvalidRequest("give a number over 0", field="latency_ratio")
    return made


def student_name(request: pb.PublishStudentRequest) -> str:
    """The served name of a student for which none was given. A UUIDv7 begins with the time: its end tells jobs apart."""
    return f"{request.name}-{request.id[-8:]}{'-int8' if request.int8 else ''}"


def rules(request: pb.PublishStudentRequest) -> Rules:
    """Of a whole request."""
    return Rules(
        stages=tuple(request.stages),
        stage_s=request.stage_time.ToTimedelta().total_seconds(),
        stage_requests=request.stage_requests,
        timeout_s=request.stage_timeout.ToTimedelta().total_seconds(),
        error_margin=request.error_margin,
        latency_ratio=request.latency_ratio,
    )


def _text(value: str, field: str, least: int = 0) -> None:
    if not least <= len(value.encode()) <= MAX_ID_BYTES:
        raise InvalidRequest(f"give {least} to {MAX_ID_BYTES} bytes", field=field)


def _check_stages(stages: list[float]) -> None:
    rising = all(before < after for before, after in itertools.pairwise(stages))
    if len(stages) > MAX_STAGES or not rising or not all(0 < share <= 1 for share in stages):
        raise InvalidRequest(
            f"give 1 to {MAX_STAGES} shares over 0 to 1, each greater than the one before", field="stages"
        )


def _default(value: Duration, given: bool, default: timedelta, field: str) -> None:
    if not given:
        value.FromTimedelta(default)
    try:
        right = timedelta(0) < value.ToTimedelta() <= _LONGEST
    except (ValueError, OverflowError):
        right = False
    if not right:
        raise InvalidRequest("give a duration over 0, a year at most", field=field)
