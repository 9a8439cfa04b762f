"""Who is behind a port of this machine that is in use."""

from __future__ import annotations

import http.client

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_ANSWER_S = 2.0
_SERVICES = ("Router", "MetricsBus", "Worker", "Distiller")


def who_answers(address: str) -> str:
    """What a LADR service at that address says of its health; "" where another thing answers, or nothing."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in _SERVICES:
            request = health_pb2.HealthCheckRequest(service=f"ladr.v1.{service}")
            try:
                reply = stub.Check(request, timeout=_ANSWER_S)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    continue
                return ""
            ready = reply.status == health_pb2.HealthCheckResponse.SERVING
            return f"a LADR {service} answers there{'' if ready else ', not ready yet'}"
    return ""


def who_has_metrics(address: str) -> str:
    """Whether a /metrics page of LADR is there; "" where it is another's, or none."""
    connection = http.client.HTTPConnection(address, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read(1 << 20)
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    return "a LADR service's /metrics answers there" if b"ladr_" in page else ""
