"""`ladr.v1.MetricsBus` on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import grpc

from ladr.config import MetricsSettings
from ladr.errors import Draining, Overloaded
from ladr.v1.fleet_pb2 import WorkerReport
from ladr.v1.metrics_pb2 import PublishAck, SubscribeRequest
from services.metrics.bus import Bus
from services.metrics.report import check

NAME = "ladr.v1.MetricsBus"


class MetricsBusServicer:
    """Takes reports into the bus and gives its updates out. Both streams are endless; `drain` ends them."""

    def __init__(self, bus: Bus, settings: MetricsSettings) -> None:
        self._bus = bus
        self._open = {"publishers": 0, "subscribers": 0}
        # A worker that has reconnected may have its old stream still open.
        self._most = {"publishers": 2 * settings.max_workers, "subscribers": settings.max_subscribers}
        self._reading: set[asyncio.Task[Any]] = set()
        self._draining = False

    @property
    def subscribers(self) -> int:
        """Subscribe streams that are open."""
        return self._open["subscribers"]

    def handlers(self) -> Mapping[str, grpc.RpcMethodHandler]:
        """The methods, for `Server.add`. Updates are bytes already: they are made once for all subscribers."""
        return {
            "Publish": grpc.stream_stream_rpc_method_handler(
                self.publish,
                request_deserializer=WorkerReport.FromString,
                response_serializer=PublishAck.SerializeToString,
            ),
            "Subscribe": grpc.unary_stream_rpc_method_handler(
                self.subscribe, request_deserializer=SubscribeRequest.FromString
            ),
        }

    def drain(self) -> None:
        """End all streams now with Draining, and refuse new ones: their peers go to another instance."""
        self._draining = True
        for task in self._reading:
            task.cancel()
        self._bus.wake()

    async def publish(self, _: object, context: grpc.aio.ServicerContext) -> AsyncIterator[PublishAck]:
        """Acknowledge each report. The end of the stream says nothing of the worker: its silence does, or its goodbye.

        Raises: InvalidRequest: a report is wrong. Overloaded: a worker or a stream too many. Draining.
        """
        with self._stream("publishers"):
            while (report := await self._read(context)) is not grpc.aio.EOF:
                check(report)
                self._bus.publish(report)
                yield PublishAck(sequence=report.sequence)

    async def subscribe(self, _: SubscribeRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """The whole fleet, then its changes with each tick; a reader that is behind gets the newest when it is ready.

        Raises: Overloaded: a subscriber too many. Draining.
        """
        with self._stream("subscribers"):
            version = 0
            while True:
                tick = self._bus.tick
                update = self._bus.update_since(version)
                version = update.version
                yield update.data
                await tick.wait()
                self._refuse_if_draining()

    @contextmanager
    def _stream(self, kind: str) -> Iterator[None]:
        self._refuse_if_draining()
        if self._open[kind] >= self._most[kind]:
            raise Overloaded(f"the bus has as many {kind} as it may; retry", retry_after=timedelta(seconds=1))
        self._open[kind] += 1
        try:
            yield
        finally:
            self._open[kind] -= 1

    async def _read(self, context: grpc.aio.ServicerContext) -> Any:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._refuse_if_draining()
        self._reading.add(task)
        try:
            return await context.read()
        except asyncio.CancelledError:
            if self._draining:
                task.uncancel()
                self._refuse_if_draining()
            raise
        finally:
            self._reading.discard(task)

    def _refuse_if_draining(self) -> None:
        if self._draining:
            raise Draining("this bus is going away; connect to another")
