"""The load of each worker over time, as the router tells it five times a second."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import grpc

from ladr.failure import call_failed
from ladr.v1.router_pb2 import WatchRoutesRequest
from ladr.v1.router_pb2_grpc import RouterStub

_SAMPLES = 3000  # the newest ten minutes
_WORKERS = 64


@dataclass
class WorkerLoads:
    """By worker: (seconds after the start, requests running and waiting there). `policy`: what the router says that it is."""

    policy: str = ""
    by_worker: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)


async def policy_of(channel: Any, address: str) -> str:
    """Name of a router's policy. Raises: LadrError: it does not tell."""
    call = RouterStub(channel).WatchRoutes(WatchRoutesRequest(), timeout=5.0)
    try:
        async for table in call:
            return str(table.policy)
    except grpc.aio.AioRpcError as failed:
        raise call_failed(failed, address) from None
    finally:
        call.cancel()
    return ""


async def watch_loads(channel: Any, loads: WorkerLoads) -> None:
    """Fill `loads` until cancelled or until the router ends it."""
    began_s = time.monotonic()
    call = RouterStub(channel).WatchRoutes(WatchRoutesRequest())
    try:
        async for table in call:
            at_s = time.monotonic() - began_s
            for route in table.routes[:_WORKERS]:
                samples = loads.by_worker.setdefault(route.worker_id, deque(maxlen=_SAMPLES))
                samples.append((at_s, route.running + route.queued))
    except grpc.aio.AioRpcError:
        return  # the requests tell of it
    finally:
        call.cancel()
