"""What a report must look like before the bus takes it."""

from __future__ import annotations

import re

from ladr.errors import InvalidRequest
from ladr.v1.fleet_pb2 import LatencyTotals, WorkerReport

MAX_BYTES = 16 << 10  # of a whole report; a full fleet still fits one message between bus and router

_WORKER_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/]+):(\d{1,5})")


_MAX_SECONDS = 10 * 365 * 86400


def check(report: WorkerReport) -> None:
    """Raises: InvalidRequest: the report is not fit to be told to others; its `field` says where."""
    if report.ByteSize() > MAX_BYTES:
        raise InvalidRequest(f"a report has {MAX_BYTES} bytes at most")
    if not _WORKER_ID.fullmatch(report.worker_id):
        raise InvalidRequest(
            "worker_id is 1 to 63 of a-z, 0-9, '-', '.', '_', and begins with one of a-z, 0-9", field="worker_id"
        )
    if not 1 <= len(report.incarnation) <= 64:
        raise InvalidRequest("incarnation is a UUIDv7, 64 characters at most", field="incarnation")
    address = _ADDRESS.fullmatch(report.address)
    if not address or len(report.address) > 260 or not 1 <= int(address[2]) <= 65535:
        raise InvalidRequest("address is host:port, such as 127.0.0.1:50061", field="address")
    if report.slots < 1:
        raise InvalidRequest("slots is 1 or more", field="slots")
    for field, most in (("models", 64), ("stages", 16), ("gpus", 16)):
        if len(getattr(report, field)) > most:
            raise InvalidRequest(f"{field} has {most} entries at most", field=field)
    for field in ("time_to_first_token", "time_per_output_token", "end_to_end"):
        _check_latency(getattr(report, field), field)
    for index, stage in enumerate(report.stages):
        _check_latency(stage.latency, f"stages[{index}].latency")
        if not 1 <= len(stage.name.encode()) <= 32:
            raise InvalidRequest("a stage's name has 1 to 32 bytes", field=f"stages[{index}].name")
    for index, model in enumerate(report.models):
        if not 1 <= len(model.name.encode()) <= 128:
            raise InvalidRequest("a model's name has 1 to 128 bytes", field=f"models[{index}].name")
    if not 0 <= report.loop_lag.seconds <= _MAX_SECONDS:
        raise InvalidRequest("loop_lag is 0 to 10 years", field="loop_lag")


def _check_latency(totals: LatencyTotals, field: str) -> None:
    if not 0 <= totals.sum.seconds <= _MAX_SECONDS or totals.sum.nanos < 0:
        raise InvalidRequest("a sum of latencies is 0 to 10 years", field=field)
