"""A real gRPC server that plays a router: it sends what a test wrote down, and notes what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc
from grpc_status import rpc_status

from ladr.errors import LadrError, NotFound
from ladr.status import to_status
from ladr.v1 import fleet_pb2, generation_pb2, router_pb2, router_pb2_grpc
from tests.ports import free_port


def started(attempt: int = 1, worker: str = "w1") -> generation_pb2.GenerateResponse:
    return generation_pb2.GenerateResponse(
        started=generation_pb2.Started(worker_id=worker, model="m", attempt=attempt, request_id="r")
    )


def delta(text: str, offset: int, count: int = 1) -> generation_pb2.GenerateResponse:
    ids = range(offset, offset + count)
    return generation_pb2.GenerateResponse(
        delta=generation_pb2.Delta(text=text, offset=offset, token_count=count, token_ids=ids)
    )


def finished(tokens: int, reason: str = "STOP") -> generation_pb2.GenerateResponse:
    return generation_pb2.GenerateResponse(
        finished=generation_pb2.Finished(
            reason=f"FINISH_REASON_{reason}",
            usage=generation_pb2.Usage(prompt_tokens=5, completion_tokens=tokens),
        )
    )


WHOLE = [started(), delta("Seine, ", 0, 2), delta("Rhine.", 2), finished(3)]


class FakeRouter(router_pb2_grpc.RouterServicer):
    """Sends `script`, then raises `error`, or hangs if told so. `open` counts the streams in progress."""

    def __init__(self) -> None:
        self.script: list[generation_pb2.GenerateResponse] = list(WHOLE)
        self.hang = False
        self.error: LadrError | None = None
        self.requests: list[generation_pb2.GenerateRequest] = []
        self.metadata: list[dict[str, Any]] = []
        self.time_left: list[float | None] = []
        self.workers = [
            router_pb2.WorkerInfo(report=fleet_pb2.WorkerReport(worker_id=f"w{n}"), eligible=True) for n in range(3)
        ]
        self.shares: dict[str, float] = {}
        self.unknown = ""
        self.open = 0
        self.cancelled = 0
        self.address = ""
        self.changed = asyncio.Condition()

    async def Generate(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.time_left.append(context.time_remaining())
        async with self._counted():
            for message in self.script:
                await context.write(message)
            await self._end(context)

    async def WatchRoutes(self, request: Any, context: Any) -> None:
        async with self._counted():
            for version in range(1, 1_000_000):
                table = router_pb2.RouteTable(version=version, policy=request.model)
                for worker, share in self.shares.items():
                    table.routes.add(worker_id=worker, weight=share)
                await context.write(table)
                await asyncio.sleep(0.01)

    async def ListWorkers(self, request: Any, context: Any) -> router_pb2.ListWorkersResponse:
        at = int(request.page_token or 0)
        return router_pb2.ListWorkersResponse(
            workers=self.workers[at : at + 1], next_page_token=str(at + 1) if at + 1 < len(self.workers) else ""
        )

    async def GetWorker(self, request: Any, context: Any) -> router_pb2.WorkerInfo:
        await self._end(context)
        return self.workers[0]

    async def DrainWorker(self, request: Any, context: Any) -> router_pb2.WorkerInfo:
        if request.worker_id == self.unknown:
            await self._abort(context, NotFound("no such worker", resource=("worker", request.worker_id)))
        info = router_pb2.WorkerInfo(report=fleet_pb2.WorkerReport(worker_id=request.worker_id))
        info.eligible = request.undo
        return info

    async def until(self, what: str, count: int) -> None:
        """Wait until `self.what` is `count`; fails after 2 s."""
        async with asyncio.timeout(2):
            async with self.changed:
                await self.changed.wait_for(lambda: getattr(self, what) == count)

    async def _end(self, context: Any) -> None:
        if self.error is not None:
            await self._abort(context, self.error)
        if self.hang:
            await asyncio.Event().wait()

    async def _abort(self, context: Any, error: LadrError) -> None:
        await context.abort_with_status(rpc_status.to_status(to_status(error)))

    def _counted(self) -> Any:
        return _Counted(self)


class _Counted:
    def __init__(self, router: FakeRouter) -> None:
        self._router = router

    async def __aenter__(self) -> None:
        async with self._router.changed:
            self._router.open += 1
            self._router.changed.notify_all()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        async with self._router.changed:
            self._router.open -= 1
            self._router.cancelled += kind is asyncio.CancelledError
            self._router.changed.notify_all()


@asynccontextmanager
async def serving(fake: FakeRouter) -> AsyncIterator[FakeRouter]:
    """The same on a port of its own."""
    server = grpc.aio.server()
    router_pb2_grpc.add_RouterServicer_to_server(fake, server)
    fake.health = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(fake.health, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    fake.stop = server.stop
    yield fake
    await server.stop(0)


@pytest.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with serving(FakeRouter()) as fake:
        yield fake


@pytest.fixture
def say() -> Any:
    """Makers of the three events, and a whole answer of three tokens."""

    class Say:
        pass

    say = Say()
    say.started, say.delta, say.finished, say.whole = started, delta, finished, WHOLE
    return say


@pytest.fixture
def dead_address() -> str:
    """Where nobody listens."""
    return f"127.0.0.1:{free_port()}"
