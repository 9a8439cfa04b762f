"""Reports come whatever the event loop does, go on to the next bus, and end with a goodbye."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from ladr.config import WorkerSettings
from ladr.v1 import fleet_pb2, metrics_pb2, metrics_pb2_grpc
from services.worker.app import App
from tests.load import until
from tests.processes import SIMULATED, Process


class Ear:
    """Subscribes to a bus from a thread of its own; keeps when each report was heard."""

    def __init__(self, address: str) -> None:
        self.heard: list[tuple[float, fleet_pb2.WorkerReport]] = []
        self.gone: list[str] = []
        self._channel = grpc.insecure_channel(address)
        self._call = metrics_pb2_grpc.MetricsBusStub(self._channel).Subscribe(metrics_pb2.SubscribeRequest())
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            for update in self._call:
                self.heard.extend((time.monotonic(), entry.report) for entry in update.workers)
                self.gone.extend(one.worker_id for one in update.gone)
        except grpc.RpcError:
            return

    def close(self) -> None:
        self._call.cancel()
        self._thread.join()
        self._channel.close()


@contextmanager
def ear(address: str) -> Iterator[Ear]:
    listening = Ear(address)
    try:
        yield listening
    finally:
        listening.close()


def settings(*buses: str) -> WorkerSettings:
    return WorkerSettings(
        id="w", engine="simulated", port=0, http_port=0, bus=buses, models=[{"name": "sim"}], drain_grace="1s"
    )


async def test_a_blocked_event_loop_and_a_busy_interpreter_delay_no_report() -> None:
    bus = await Process("metrics", {}).start()
    stop = asyncio.Event()
    app = App(settings(bus.address))
    running = asyncio.create_task(app.run(stop))
    await app.serving.wait()
    try:
        with ear(bus.address) as listening:
            await until(lambda: len(listening.heard) > 2, 5, "reports")
            for block in (lambda: time.sleep(2), lambda: _busy(2)):
                began_s = time.monotonic()
                block()
                times = [at for at, _ in listening.heard if at > began_s]
                assert len(times) >= 8
                assert max(b - a for a, b in itertools.pairwise(times)) < 0.6
                assert listening.heard[-1][1].loop_lag.ToTimedelta().total_seconds() > 1
                await asyncio.sleep(0.3)
            await until(
                lambda: listening.heard[-1][1].loop_lag.ToTimedelta().total_seconds() < 0.5, 2, "a loop that runs"
            )
    finally:
        stop.set()
        await running
        await bus.kill()


def _busy(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sum(range(1000))


async def test_a_worker_says_draining_then_goodbye() -> None:
    bus = await Process("metrics", {}).start()
    worker = await Process("worker", {**SIMULATED, "LADR_WORKER__BUS": bus.address, "LADR_WORKER__ID": "w"}).start()
    try:
        with ear(bus.address) as listening:
            await until(lambda: len(listening.heard) > 1, 5, "reports")
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0
            await until(lambda: "w" in listening.gone, 1, "a goodbye")
            states = [report.state for _, report in listening.heard]
            assert fleet_pb2.WORKER_STATE_DRAINING in states
    finally:
        await worker.kill()
        await bus.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_goes_on_to_the_next_bus_when_its_own_dies_or_freezes(number: signal.Signals) -> None:
    first, second = await Process("metrics", {}).start(), await Process("metrics", {}).start()
    stop = asyncio.Event()
    app = App(settings(first.address, second.address))
    running = asyncio.create_task(app.run(stop))
    await app.serving.wait()
    try:
        with ear(second.address) as listening:
            await until(lambda: app.reporter.connected, 5, "the first bus")
            first.send(number)
            await until(lambda: len(listening.heard) > 2, 4, "reports at the second bus")
    finally:
        stop.set()
        await running
        await first.kill()
        await second.kill()
