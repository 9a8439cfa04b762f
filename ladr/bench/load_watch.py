"""The load of each worker over time, as the router tells it five times a second."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import grpc

from ladr.client import Client
from ladr.v1.router_pb2 import WatchRoutesRequest
from ladr.v1.router_pb2_grpc import RouterStub

_CALL_S = 5.0
_SAMPLES = 3000  # the newest ten minutes
_WORKERS = 64


@dataclass
class WorkerLoads:
    """By worker: (seconds after the start, requests running and waiting there)."""

    by_worker: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)


async def policy_of(address: str) -> str:
    """Name of a running router's policy, or "" where it has none to tell. Raises: LadrError: it does not answer."""
    async with Client(address) as client, client.watch_routes(timeout=_CALL_S) as tables:
        async for table in tables:
            return table.policy
    return ""


async def watch_loads(channel: Any, loads: WorkerLoads) -> None:
    """Fill `loads` until cancelled or until the router ends it."""
    began_s = time.monotonic()
    call = RouterStub(channel).WatchRoutes(WatchRoutesRequest())
    try:
        async for table in call:
            at_s = time.monotonic() - began_s
            for route in table.routes:
                if route.worker_id in loads.by_worker or len(loads.by_worker) < _WORKERS:
                    samples = loads.by_worker.setdefault(route.worker_id, deque(maxlen=_SAMPLES))
                    samples.append((at_s, route.running + route.queued))
    except grpc.aio.AioRpcError:
        return  # the requests tell of it
    finally:
        call.cancel()
