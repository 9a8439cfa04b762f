from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from ladr.errors import InvalidRequest
from ladr.v1.fleet_pb2 import GpuMemory, LatencyTotals, ModelStatus, StageStatus
from services.metrics.report import check
from tests.metrics.buses import report


def latency(seconds: int, nanos: int = 0) -> LatencyTotals:
    return LatencyTotals(count=1, sum=Duration(seconds=seconds, nanos=nanos))


BAD = [
    ({"worker_id": ""}, "worker_id"),
    ({"worker_id": "W"}, "worker_id"),
    ({"worker_id": "-w"}, "worker_id"),
    ({"worker_id": "w\n"}, "worker_id"),
    ({"worker_id": "w" * 64}, "worker_id"),
    ({"incarnation": ""}, "incarnation"),
    ({"incarnation": "0" * 65}, "incarnation"),
    ({"address": ""}, "address"),
    ({"address": "host"}, "address"),
    ({"address": "host:0"}, "address"),
    ({"address": "host:65536"}, "address"),
    ({"address": "host:50061\n"}, "address"),
    ({"address": "http://host:50061"}, "address"),
    ({"address": "h" * 256 + ":50061"}, "address"),
    ({"slots": 0}, "slots"),
    ({"models": [ModelStatus()] * 65}, "models"),
    ({"stages": [StageStatus()] * 17}, "stages"),
    ({"stages": [StageStatus()]}, "stages[0].name"),
    ({"models": [ModelStatus(name="ok"), ModelStatus()]}, "models[1].name"),
    ({"time_to_first_token": latency(10**15)}, "time_to_first_token"),
    ({"time_per_output_token": latency(-1)}, "time_per_output_token"),
    ({"end_to_end": latency(0, -5)}, "end_to_end"),
    ({"loop_lag": Duration(seconds=10**12)}, "loop_lag"),
    ({"gpus": [GpuMemory()] * 17}, "gpus"),
    ({"engine": "x" * (16 << 10)}, ""),
]


@pytest.mark.parametrize(("fields", "field"), BAD)
def test_a_bad_report_is_refused_with_its_field(fields: dict, field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        check(report(**fields))
    assert error.value.field == field


@pytest.mark.parametrize(
    "fields",
    [
        {"worker_id": "0" * 63},
        {"worker_id": "a.b_c-d"},
        {"incarnation": "0198aaaa-0000-7000-8000-000000000000"},
        {"address": "[::1]:50061"},
        {"address": "worker-3.chat.svc:65535"},
        {
            "models": [ModelStatus(name="m" * 128)] * 64,
            "stages": [StageStatus(name="asr")] * 16,
            "gpus": [GpuMemory()] * 16,
        },
    ],
)
def test_a_good_report_passes(fields: dict) -> None:
    check(report(**fields))
