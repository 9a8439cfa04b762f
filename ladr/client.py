"""The client of a LADR router, for asyncio. `ladr.sync_client` is its twin without."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ladr.answer import Answer
from ladr.channel import DEFAULT_ADDRESS, MAX_MESSAGE_BYTES, client_options
from ladr.distill_calls import DistillCalls
from ladr.errors import DeadlineExceeded, Unreachable
from ladr.exchange import Generating, Plain
from ladr.failure import call_failed, not_ready
from ladr.job_calls import JobCalls
from ladr.request import RequestOptions, edge_metadata, generate_request
from ladr.stream import Generation, Stream
from ladr.v1 import router_pb2 as pb
from ladr.v1.distiller_pb2_grpc import DistillerStub
from ladr.v1.router_pb2_grpc import RouterStub

if TYPE_CHECKING:
    from ladr.lookaside import LookAside

S = TypeVar("S", bound=Stream[Any, Any])
_CALL_S = 10.0
_RETRY_S = 0.1


class Client(JobCalls, DistillCalls):
    """Talks to one router over one channel, on one event loop; with a distiller's address, to that.

    Use it as an async context manager, or `close` it. It connects at the first call. What can fail raises a LadrError:
    Unreachable (names the address), DeadlineExceeded, MessageTooLarge, and what the router says (see ladr.errors).

    Args:
        address: host:port of the router, or any gRPC target (dns:///, unix:, xds:///).
        max_message_bytes: largest message, each way.
        edge_latency: seconds that this client's own network takes to the router, such as Wi-Fi or 5G, if it knows: the router
            then leaves that out of what it expects of the fleet.
        lookaside: answers come straight from workers, which this client picks by the router's table and policy. They must be
            reachable from here. Names behind which the router chooses anew each time still go through it.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        edge_latency: float | None = None,
        lookaside: bool = False,
    ) -> None:
        self.address = address
        self._lookaside = _look_aside(self._open, address, edge_metadata(edge_latency)) if lookaside else None
        self._options = client_options(max_message_bytes)
        self._edge = edge_metadata(edge_latency)
        self._channel: Any = None
        self._closed = False
        self._streams: weakref.WeakSet[Stream[Any, Any]] = weakref.WeakSet()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel every open stream and close the channel."""
        self._closed = True
        for stream in list(self._streams):
            stream.cancel()
        if self._lookaside is not None:
            await self._lookaside.close()
        if self._channel is not None:
            await self._channel.close()

    def generate(
        self, prompt: str = "", *, timeout: float | None = None, **options: Unpack[RequestOptions]
    ) -> Generation:
        """Ask for an answer; the request goes out at once, and the answer is read from what is returned.

        Args:
            prompt: one user turn; or give `messages`.
            timeout: seconds for the whole answer; the deadline of the call.
            options: see ladr.request.RequestOptions.

        Raises: InvalidRequest: an option of a wrong kind. All else is raised when the answer is read.
        """
        request = generate_request(prompt, options)
        stub = self._router()
        exchange = Generating(request, self.address)
        call: Any
        if self._lookaside is not None:
            call = self._lookaside.call(request, timeout, exchange.span.context())
        else:
            call = stub.Generate(request, timeout=timeout, metadata=(*exchange.span.metadata(), *self._edge))
        return self._kept(Generation(call, exchange, self.address))

    async def complete(
        self, prompt: str = "", *, timeout: float | None = None, **options: Unpack[RequestOptions]
    ) -> Answer:
        """The whole answer at once; arguments as for `generate`."""
        async with self.generate(prompt, timeout=timeout, **options) as stream:
            return await stream.answer()

    async def list_workers(self, model: str = "", *, timeout: float | None = _CALL_S) -> list[pb.WorkerInfo]:
        """All workers that the router knows, by name; with `model` only those that serve it. `timeout`: seconds a page."""
        workers: list[pb.WorkerInfo] = []
        request = pb.ListWorkersRequest(model=model, page_size=1000)
        while True:
            page: pb.ListWorkersResponse = await self._unary(self._router().ListWorkers, request, timeout)
            workers += page.workers
            if not page.next_page_token:
                return workers
            request.page_token = page.next_page_token

    async def get_worker(self, worker_id: str, *, timeout: float | None = _CALL_S) -> pb.WorkerInfo:
        """One worker. Raises: NotFound."""
        info: pb.WorkerInfo = await self._unary(
            self._router().GetWorker, pb.GetWorkerRequest(worker_id=worker_id), timeout
        )
        return info

    async def drain_worker(
        self, worker_id: str, undo: bool = False, *, timeout: float | None = _CALL_S
    ) -> pb.WorkerInfo:
        """Take a worker out of service (it finishes what it has), or with `undo` back into it. Raises: NotFound."""
        request = pb.DrainWorkerRequest(worker_id=worker_id, undo=undo)
        info: pb.WorkerInfo = await self._unary(self._router().DrainWorker, request, timeout)
        return info

    def watch_routes(self, model: str = "", *, timeout: float | None = None) -> Stream[pb.RouteTable, pb.RouteTable]:
        """The router's weights, at once and then every 200 ms, for `async for`; leaving the loop cancels the call."""
        call = self._router().WatchRoutes(pb.WatchRoutesRequest(model=model), timeout=timeout)
        return self._kept(Stream(call, Plain[pb.RouteTable](), self.address))

    def watch_scale(self, model: str = "", *, timeout: float | None = None) -> Stream[pb.ScaleAdvice, pb.ScaleAdvice]:
        """How many workers each model's load asks for, at once and then each change; leaving the loop cancels the call."""
        call = self._router().WatchScale(pb.WatchScaleRequest(model=model), timeout=timeout)
        return self._kept(Stream(call, Plain[pb.ScaleAdvice](), self.address))

    async def wait_ready(self, timeout: float, service: str = "ladr.v1.Router") -> None:
        """Wait until the server says by grpc.health.v1 that requests to `service` are welcome.

        Raises: Unreachable: nothing answered within `timeout` seconds. DeadlineExceeded: it answers, and is not ready.
        """
        until = time.monotonic() + timeout
        answered = False
        while (left := until - time.monotonic()) > 0:
            health = health_pb2_grpc.HealthStub(self._open())
            call = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=left, wait_for_ready=True)
            replies = self._kept(Stream[Any, Any](call, Plain[Any](), self.address))
            try:
                async for reply in replies:
                    answered = True
                    if reply.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except (DeadlineExceeded, Unreachable):
                pass
            await asyncio.sleep(_RETRY_S)
        raise not_ready(self.address, timeout, answered)

    def _open(self) -> Any:
        if self._closed:
            raise RuntimeError("this client is closed; make another")
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=self._options)
        return self._channel

    def _router(self) -> Any:
        return RouterStub(self._open())

    def _distiller(self) -> Any:
        return DistillerStub(self._open())

    def _kept(self, stream: S) -> S:
        self._streams.add(stream)
        return stream

    async def _unary(self, method: Any, request: Any, timeout: float | None) -> Any:
        try:
            return await method(request, timeout=timeout)
        except grpc.aio.AioRpcError as failed:
            raise call_failed(failed, self.address) from None


def _look_aside(open_channel: Callable[[], Any], address: str, edge: tuple[tuple[str, str], ...]) -> LookAside:
    from ladr.lookaside import LookAside  # the whole of routing: only those who want it wait for its import

    return LookAside(open_channel, address, edge)
