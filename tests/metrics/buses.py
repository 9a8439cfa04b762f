"""Real buses on ephemeral ports, workers that report to them and watchers that hear them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import grpc
import uuid_utils
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from ladr.config import MetricsSettings
from ladr.v1.fleet_pb2 import WORKER_STATE_READY, WorkerReport
from ladr.v1.metrics_pb2 import FleetEntry, FleetUpdate, SubscribeRequest
from ladr.v1.metrics_pb2_grpc import MetricsBusStub
from services.metrics.app import App
from tests.redis_server import RedisServer


def report(worker_id: str = "w", sequence: int = 1, incarnation: str = "0", **fields: object) -> WorkerReport:
    """A valid report, with the fields that a test is about."""
    base = {"address": "127.0.0.1:50061", "state": WORKER_STATE_READY, "slots": 4} | fields
    return WorkerReport(worker_id=worker_id, incarnation=incarnation, sequence=sequence, **base)  # type: ignore[arg-type]


def settings(redis: RedisServer | None = None, **fields: object) -> MetricsSettings:
    """Settings of a bus on free ports, on that Redis or alone."""
    if redis:
        fields |= {"backend": "redis", "redis_url": SecretStr(redis.url)}
    return MetricsSettings.model_validate({"port": 0, "http_port": 0} | fields)


@asynccontextmanager
async def running(own: MetricsSettings) -> AsyncIterator[App]:
    """A bus that serves, and is stopped at the end."""
    app, stop = App(own), asyncio.Event()
    task = asyncio.create_task(app.run(stop))
    try:
        serving = asyncio.create_task(app.serving.wait())
        await asyncio.wait({task, serving}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if task.done():
            task.result()
        yield app
    finally:
        stop.set()
        await task


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[MetricsBusStub]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield MetricsBusStub(channel)


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> float:
    """Wait until the condition holds; returns how long that took [s]."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < within_s, "it did not come to be in time"
        await asyncio.sleep(0.005)
    return time.monotonic() - began_s


class Watcher:
    """A subscriber, and the fleet as its updates tell it."""

    def __init__(self) -> None:
        self.workers: dict[str, FleetEntry] = {}
        self.updates: list[tuple[float, FleetUpdate]] = []
        self.bytes = 0

    @property
    def degraded(self) -> bool:
        return self.updates[-1][1].degraded

    def sequence(self, worker_id: str) -> int:
        """Newest sequence number heard of a worker; 0 if it is not there."""
        return self.workers[worker_id].report.sequence if worker_id in self.workers else 0

    async def watch(self, stub: MetricsBusStub) -> None:
        call = stub.Subscribe(SubscribeRequest())
        try:
            async for update in call:
                self.updates.append((time.monotonic(), update))
                self.bytes += update.ByteSize()
                for entry in update.workers:
                    self.workers[entry.report.worker_id] = entry
                for gone in update.gone:
                    self.workers.pop(gone.worker_id, None)
        finally:
            call.cancel()


@asynccontextmanager
async def watching(port: int) -> AsyncIterator[Watcher]:
    """A watcher that has its snapshot."""
    watcher = Watcher()
    async with connected(port) as stub:
        task = asyncio.create_task(watcher.watch(stub))
        try:
            await until(lambda: bool(watcher.updates) or task.done())
            yield watcher
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Reporter:
    """A worker as the bus sees it: reports every `interval_s`, and connects again when its stream breaks."""

    def __init__(self, port: int, worker_id: str, interval_s: float = 0.1) -> None:
        self._port = port
        self._worker_id = worker_id
        self._interval_s = interval_s
        self._incarnation = str(uuid_utils.uuid7())
        self.sequence = 0
        self.slowest_ack_s = 0.0

    async def run(self) -> None:
        async with connected(self._port) as stub:
            while True:
                call = stub.Publish()
                try:
                    while True:
                        self.sequence += 1
                        sent_s = time.monotonic()
                        await call.write(report(self._worker_id, self.sequence, self._incarnation))
                        ack = await call.read()
                        if ack is grpc.aio.EOF:
                            break
                        assert ack.sequence == self.sequence
                        self.slowest_ack_s = max(self.slowest_ack_s, time.monotonic() - sent_s)
                        await asyncio.sleep(self._interval_s)
                except grpc.RpcError:
                    pass
                finally:
                    call.cancel()
                await asyncio.sleep(0.02)


@asynccontextmanager
async def reporting(port: int, *worker_ids: str, interval_s: float = 0.1) -> AsyncIterator[list[Reporter]]:
    reporters = [Reporter(port, worker_id, interval_s) for worker_id in worker_ids]
    tasks = [asyncio.create_task(reporter.run()) for reporter in reporters]
    try:
        yield reporters
        assert not any(task.done() for task in tasks), "a reporter broke"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def publish(port: int, *reports: WorkerReport) -> list[int]:
    """Publish on one stream and end it; returns the sequence numbers acknowledged."""
    async with connected(port) as stub:
        call = stub.Publish(iter(reports))
        try:
            return [ack.sequence async for ack in call]
        finally:
            call.cancel()


async def health(port: int, service: str) -> int:
    """Status of a health service."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
        return int(answer.status)


def samples(page: str) -> Iterator[tuple[str, float]]:
    """Names and values of a /metrics page."""
    for family in text_string_to_metric_families(page):
        for sample in itertools.islice(family.samples, 1000):
            yield sample.name, sample.value
