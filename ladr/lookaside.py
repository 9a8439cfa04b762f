"""Requests that go straight to workers: the client watches a router's table and picks by the router's own policy.

The router is asked for nothing else, so that it costs no hop; and nothing stops while it is away. Retries, resumption and late
binding are those of the Router: it is the same code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from random import SystemRandom
from typing import Any, get_args
from uuid import uuid4

import grpc
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from ladr.config import RouterSettings
from ladr.errors import DeadlineExceeded, Internal, LadrError, NotFound, NoWorker, Unreachable
from ladr.routing.router import Router
from ladr.routing.sink import Sink
from ladr.tracing import span_metadata
from ladr.v1 import metrics_pb2, router_pb2
from ladr.v1.generation_pb2 import GenerateRequest, GenerateResponse
from ladr.v1.router_pb2_grpc import RouterStub

FIRST_TABLE_S = 5.0  # how long a request waits for the first table
_RETRY_S = 0.2
_AHEAD = 256  # messages that a reader may be behind before the worker is slowed down
_TICK_S = 0.2


class LookAside:
    """Keeps a router's table, and a router of its own over it. Lives on one event loop; `close` it.

    What the table does not tell (retries, hedging, slow start) is as by default here.

    Args: open_channel: gives the channel to the router. edge: metadata for what the router itself is asked for.
    """

    def __init__(self, open_channel: Callable[[], Any], address: str, edge: tuple[tuple[str, str], ...] = ()) -> None:
        self._edge = edge
        self._ask_router: frozenset[str] = frozenset()
        self._open_channel = open_channel
        self._address = address
        self._router: Router | None = None
        self._known = asyncio.Event()  # a table came
        self._entries: dict[str, metrics_pb2.FleetEntry] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._open: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to watch, at the first request."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._watch_for_ever()), asyncio.create_task(self._tick_for_ever())]

    async def close(self) -> None:
        """End open answers and stop watching."""
        tasks = [*self._open, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._router:
            await self._router.close()

    def call(self, request: GenerateRequest, timeout: float | None, parent: Context) -> LocalCall:
        """Ask for an answer; looks like a gRPC call. `parent`: the trace context of its spans."""
        self.start()
        call = LocalCall(self._messages(request, timeout), parent)
        self._open.add(call.pump)
        call.pump.add_done_callback(self._open.discard)
        return call

    async def _messages(self, request: GenerateRequest, timeout: float | None) -> AsyncGenerator[bytes]:
        began_s = time.monotonic()
        router = await self._found(timeout)
        left_s = timeout - (time.monotonic() - began_s) if timeout is not None else None
        if request.model in self._ask_router or not _known(router, request.model):
            messages: AsyncIterator[bytes] = self._proxied(request, left_s)
        else:
            messages = router.generate(request.SerializeToString(), left_s)
        async with aclosing(messages):  # type: ignore[type-var]
            async for message in messages:
                yield message

    async def _found(self, timeout: float | None) -> Router:
        """The router over the first table. Raises: Unreachable: none came in time."""
        if self._router is None:
            try:
                async with asyncio.timeout(min(FIRST_TABLE_S, timeout or FIRST_TABLE_S)):
                    await self._known.wait()
            except TimeoutError:
                if timeout is not None and timeout < FIRST_TABLE_S:
                    raise DeadlineExceeded(f"the deadline passed before a router answered at {self._address}") from None
                raise Unreachable(f"no router answers at {self._address}") from None
        assert self._router is not None  # noqa: S101  # set before `_known`
        return self._router

    async def _proxied(self, request: GenerateRequest, timeout: float | None) -> AsyncGenerator[bytes]:
        metadata = (*span_metadata(trace.get_current_span()), *self._edge)
        call = self._open_channel().unary_stream("/ladr.v1.Router/Generate")(
            request.SerializeToString(), timeout=timeout, metadata=metadata
        )
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                yield message
        finally:
            call.cancel()

    async def _watch_for_ever(self) -> None:
        while True:
            call = RouterStub(self._open_channel()).WatchRoutes(
                router_pb2.WatchRoutesRequest(reports=True, changes_only=True)
            )
            try:
                async for table in call:
                    self._hear(table)
            except (grpc.aio.AioRpcError, ValueError):  # it is away, or it is of a version that tells too little
                pass
            finally:
                call.cancel()
                if self._router:
                    self._router.board.lost()
            await asyncio.sleep(_RETRY_S)

    async def _tick_for_ever(self) -> None:
        """What the Router does each tick: give up the silent, and serve those who wait."""
        while True:
            await asyncio.sleep(_TICK_S)
            if self._router:
                self._router.tick(time.monotonic())
                await self._router.channels.keep(self._router.board.addresses())

    def _hear(self, table: router_pb2.RouteTable) -> None:
        update = metrics_pb2.FleetUpdate(degraded=table.degraded)
        listed = set()
        for route in table.routes:
            listed.add(route.worker_id)
            known = self._entries.get(route.worker_id)
            if not route.HasField("report") or route.ineligible_reason == "silent":
                if known is not None:
                    del self._entries[route.worker_id]
                    update.gone.add(worker_id=route.worker_id, incarnation=known.report.incarnation)
                continue
            entry = metrics_pb2.FleetEntry(report=route.report, age=route.age)
            self._entries[route.worker_id] = entry
            update.workers.append(entry)
        for worker_id, entry in list(self._entries.items()):
            if worker_id in listed:
                continue
            if table.partial:  # as it was, and alive
                entry.ClearField("age")
                update.workers.append(entry)
            else:
                del self._entries[worker_id]
                update.gone.add(worker_id=worker_id, incarnation=entry.report.incarnation)
        self._ask_router = frozenset(table.picking.ask_router)
        if self._router is None:
            self._router = Router(_settings(table), SystemRandom(), lambda: str(uuid4()), Sink())
        parameters = dict(table.picking.parameters)
        if parameters and parameters != self._router.binder.main_policy.parameters():
            self._router.binder.main_policy.tune(parameters)
        self._router.board.hear(update, time.monotonic())
        self._router.binder.changed()
        self._known.set()


def _known(router: Router, model: str) -> bool:
    """Whether this table tells of a model; what it does not tell of, only the router knows."""
    try:
        router.served(model)
    except (NotFound, NoWorker):
        return False
    return True


def _settings(table: router_pb2.RouteTable) -> RouterSettings:
    """The router's way of picking, as far as this version knows it."""
    picking = table.picking
    policies = get_args(RouterSettings.model_fields["policy"].annotation)
    return RouterSettings(
        policy=table.policy if table.policy in policies else policies[0],
        alpha=table.alpha,
        beta=table.beta,
        theta=picking.theta,
        ttl=picking.ttl.ToTimedelta(),
        aliases=dict(picking.aliases),
        default_model=picking.default_model,
    )


class LocalCall:
    """Messages of this process, read like a gRPC stream: `read` gives the next, EOF at the end; `cancel` ends it."""

    def __init__(self, messages: AsyncGenerator[bytes], parent: Context) -> None:
        self._inbox: asyncio.Queue[bytes | LadrError | Any] = asyncio.Queue(_AHEAD)
        self.pump = asyncio.create_task(self._run(messages, parent))

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF. Raises: LadrError, AioRpcError: the request failed."""
        got = await self._inbox.get()
        if isinstance(got, BaseException):
            raise got
        return got if got is grpc.aio.EOF else GenerateResponse.FromString(got)

    def cancel(self) -> None:
        """End it; a reader that waits is woken by a CancelledError."""
        self.pump.cancel()

    async def _run(self, messages: AsyncGenerator[bytes], parent: Context) -> None:
        otel_context.attach(parent)
        try:
            async with aclosing(messages):
                async for message in messages:
                    await self._inbox.put(message)
            await self._inbox.put(grpc.aio.EOF)
        except (LadrError, grpc.aio.AioRpcError) as error:
            await self._inbox.put(error)
        except Exception as error:
            await self._inbox.put(Internal(f"this client failed on the request: {error!r}"))
            raise
        except asyncio.CancelledError as cancelled:
            while not self._inbox.empty():
                self._inbox.get_nowait()
            self._inbox.put_nowait(cancelled)
            raise
