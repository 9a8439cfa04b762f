"""A router over real gRPC servers that play workers of all kinds, told what to do by a test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import Any
from uuid import uuid4

import grpc
from grpc_status import rpc_status

from ladr.config import RouterSettings
from ladr.errors import LadrError
from ladr.routing.router import Router
from ladr.routing.sink import Sink
from ladr.status import to_status
from ladr.v1 import fleet_pb2, generation_pb2, metrics_pb2

Behaviour = Callable[[generation_pb2.GenerateRequest, Any], AsyncIterator[generation_pb2.GenerateResponse]]
STARTED = generation_pb2.GenerateResponse(started=generation_pb2.Started(worker_id="w"))
FINISHED = generation_pb2.GenerateResponse(finished=generation_pb2.Finished())


def delta(n: int) -> generation_pb2.GenerateResponse:
    return generation_pb2.GenerateResponse(delta=generation_pb2.Delta(text=f"{n} ", offset=n, token_count=1))


async def answers(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
    yield STARTED
    for n in range(3):
        yield delta(n)
    yield FINISHED


def fails(error: LadrError, after: int = 0) -> Behaviour:
    async def behave(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield STARTED
        for n in range(after):
            yield delta(n)
        await context.abort_with_status(rpc_status.to_status(to_status(error)))

    return behave


async def ends_early(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
    yield STARTED


class Hanging:
    """Starts and says nothing; knows how many calls it has open."""

    def __init__(self) -> None:
        self.open = 0

    async def behave(self, request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        self.open += 1
        try:
            yield STARTED
            await asyncio.sleep(30)
        finally:
            self.open -= 1


class Scene:
    """A router over workers that are told what to do; reports are given by hand."""

    def __init__(self, router: Router, ports: dict[str, int], models: Sequence[str]) -> None:
        self.router = router
        self._models = models
        self.ports = ports
        self._sequence = 0

    def hear(self, state: int = fleet_pb2.WORKER_STATE_READY, model: int = fleet_pb2.MODEL_STATE_READY) -> None:
        """Every worker reports."""
        self._sequence += 1
        update = metrics_pb2.FleetUpdate()
        for worker_id, port in self.ports.items():
            report = fleet_pb2.WorkerReport(
                worker_id=worker_id,
                incarnation="1",
                sequence=self._sequence,
                address=f"127.0.0.1:{port}",
                slots=8,
                state=state,
            )
            for name in self._models:
                report.models.add(name=name, state=model)
            update.workers.add(report=report)
        self.router.board.hear(update, time.monotonic())
        self.router.binder.changed()

    async def ask(self, timeout_s: float | None = 5.0, **fields: Any) -> list[generation_pb2.GenerateResponse]:
        raw = generation_pb2.GenerateRequest(**{"prompt": "x", **fields}).SerializeToString()
        async with aclosing(self.router.generate(raw, timeout_s)) as messages:
            return [generation_pb2.GenerateResponse.FromString(message) async for message in messages]

    def at_rest(self) -> bool:
        return self.router.open == 0 and not any(row.in_flight or row.leases for row in self.router.board.rows())


@asynccontextmanager
async def scene(
    settings: RouterSettings | None = None, models: Sequence[str] = ("m",), **workers: Behaviour
) -> AsyncIterator[Scene]:
    servers, ports = [], {}
    for name, behave in workers.items():
        server = grpc.aio.server()
        handler = grpc.unary_stream_rpc_method_handler(
            behave,
            generation_pb2.GenerateRequest.FromString,
            generation_pb2.GenerateResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("ladr.v1.Worker", {"Generate": handler}),)
        )
        ports[name] = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
    router = Router(settings or RouterSettings(), Random(1), lambda: str(uuid4()), Sink())
    made = Scene(router, ports, models)
    made.hear()
    try:
        yield made
    finally:
        await router.close()
        for server in servers:
            await server.stop(None)
