"""A MetricsBus that plays a fleet: as many workers as wanted, without their processes.

A router that subscribes hears of each of them every 200 ms, a quarter of them at a time, as a bus with so many would tell it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random

import grpc

from ladr.v1 import fleet_pb2, metrics_pb2
from services.common.server import server_options

MODEL = "chat"
SLOTS = 32
_PARTS = 4
_PERIOD_S = 0.2
_MESSAGE_BYTES = 128 << 20


class Played:
    """The workers. Of `busy` (a share of them) the load and the totals are others in each report; the rest are idle."""

    def __init__(self, workers: int, busy: float = 1.0, seed: int = 0) -> None:
        self.busy = busy
        self._rng = Random(seed)
        self._sequence = 0
        self._entries = [_entry(number) for number in range(workers)]

    @property
    def workers(self) -> int:
        return len(self._entries)

    def update(self, part: int = 0, parts: int = 1) -> bytes:
        """A FleetUpdate with a newer report of every `parts`-th worker, from bytes as a router gets it."""
        self._sequence += 1
        update = metrics_pb2.FleetUpdate()
        active = self.busy * len(self._entries)
        for number in range(part, len(self._entries), parts):
            report = self._entries[number].report
            report.sequence = self._sequence
            if number < active:
                self._work(report)
            update.workers.append(self._entries[number])
        data: bytes = update.SerializeToString()
        return data

    def _work(self, report: fleet_pb2.WorkerReport) -> None:
        report.running = self._rng.randrange(SLOTS)
        report.queued = 0
        report.load_revision += 20
        report.tokens_total += 200
        report.finished_total += 2
        report.tokens_per_second = self._rng.uniform(900, 1_100)
        report.kv_used_ratio = self._rng.random()
        for totals, typical_s, count in (
            (report.time_to_first_token, 0.2, 2),
            (report.time_per_output_token, 0.02, 200),
            (report.end_to_end, 3.0, 2),
        ):
            totals.count += count
            so_far = totals.sum.ToTimedelta()
            totals.sum.FromTimedelta(so_far + timedelta(seconds=count * typical_s * self._rng.uniform(0.9, 1.1)))


def _entry(number: int) -> metrics_pb2.FleetEntry:
    report = fleet_pb2.WorkerReport(
        worker_id=f"worker-{number:04}",
        incarnation="0193b2c4-7a31-7d1e-9f2b-1f7c9b0e4a55",
        address=f"10.0.{number // 250}.{number % 250 + 1}:50061",
        state=fleet_pb2.WORKER_STATE_READY,
        models=[fleet_pb2.ModelStatus(name=MODEL, state=fleet_pb2.MODEL_STATE_READY, context_tokens=4096)],
        engine="simulated",
        slots=SLOTS,
    )
    entry = metrics_pb2.FleetEntry(report=report)
    entry.age.FromTimedelta(timedelta(milliseconds=20))
    return entry


@asynccontextmanager
async def played_bus(played: Played) -> AsyncIterator[str]:
    """Serve them on a free port of this machine; gives the address."""

    async def subscribe(_: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        yield played.update()
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        part = 0
        while True:
            due_s += _PERIOD_S / _PARTS
            await asyncio.sleep(due_s - loop.time())
            yield played.update(part, _PARTS)
            part = (part + 1) % _PARTS

    server = grpc.aio.server(options=server_options(_MESSAGE_BYTES))
    methods = {"Subscribe": grpc.unary_stream_rpc_method_handler(subscribe)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ladr.v1.MetricsBus", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
