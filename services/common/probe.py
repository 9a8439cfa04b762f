"""`python -m services.common.probe HOST:PORT [SERVICE]`: exit 0 if grpc health says SERVING, else 1. For containers."""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_S = 2.0


def serving(address: str, service: str) -> bool:
    """Ask once. An error or no answer within 2 s is a no."""
    with grpc.insecure_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT_S)
        except grpc.RpcError:
            return False
    well: bool = answer.status == health_pb2.HealthCheckResponse.SERVING
    return well


if __name__ == "__main__":
    sys.exit(0 if serving(sys.argv[1], *(sys.argv[2:] or [""])) else 1)
