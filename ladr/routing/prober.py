"""Asks workers for their state between two reports, for policies that want to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import grpc

from ladr.routing.channels import Channels
from ladr.routing.policy import Policy
from ladr.routing.row import Row
from ladr.v1 import worker_pb2, worker_pb2_grpc

MAX_OPEN = 64  # further ones are left out
_PROBE_S = 1.0


class Prober:
    """Calls Worker.GetStatus beside the requests and tells the policy what came; a probe that fails is no news."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._open: set[asyncio.Task[None]] = set()

    def probe(self, rows: Sequence[Row], policy: Policy) -> None:
        """Ask these workers, without waiting for them."""
        for row in rows:
            if len(self._open) >= MAX_OPEN:
                return
            task = asyncio.get_running_loop().create_task(self._ask(row, policy))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """Cancel what is open."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _ask(self, row: Row, policy: Policy) -> None:
        with self._channels.to(row.report.address) as channel:
            try:
                report = await worker_pb2_grpc.WorkerStub(channel).GetStatus(
                    worker_pb2.GetStatusRequest(), timeout=_PROBE_S
                )
            except grpc.aio.AioRpcError:
                return
        policy.probed(row, report.running + report.queued, row.latency_s or 0.0, time.monotonic())
