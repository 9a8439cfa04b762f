"""The client of a LADR router, without asyncio; the twin of `ladr.client`, safe to share between threads."""

from __future__ import annotations

import time
import weakref
from typing import Any, Self, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ladr.answer import Answer
from ladr.channel import DEFAULT_ADDRESS, MAX_MESSAGE_BYTES, client_options
from ladr.distill_calls import SyncDistillCalls
from ladr.errors import DeadlineExceeded, Unreachable
from ladr.exchange import Generating, Plain
from ladr.failure import call_failed, not_ready
from ladr.job_calls import SyncJobCalls
from ladr.request import RequestOptions, edge_metadata, generate_request
from ladr.sync_stream import SyncGeneration, SyncStream
from ladr.v1 import router_pb2 as pb
from ladr.v1.distiller_pb2_grpc import DistillerStub
from ladr.v1.router_pb2_grpc import RouterStub

S = TypeVar("S", bound=SyncStream[Any, Any])
_CALL_S = 10.0
_RETRY_S = 0.1


class SyncClient(SyncJobCalls, SyncDistillCalls):
    """Talks to one router over one channel. Arguments and errors are those of `ladr.Client`.

    Use it as a context manager, or `close` it.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        edge_latency: float | None = None,
    ) -> None:
        self.address = address
        self._edge = edge_metadata(edge_latency)
        self._channel = grpc.insecure_channel(address, options=client_options(max_message_bytes))
        self._router: Any = RouterStub(self._channel)
        self._distiller: Any = DistillerStub(self._channel)
        self._closed = False
        self._streams: weakref.WeakSet[SyncStream[Any, Any]] = weakref.WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel every open stream and close the channel."""
        self._closed = True
        for stream in list(self._streams):
            stream.cancel()
        self._channel.close()

    def generate(
        self, prompt: str = "", *, timeout: float | None = None, **options: Unpack[RequestOptions]
    ) -> SyncGeneration:
        """Ask for an answer; the request goes out at once, and the answer is read from what is returned.

        Raises: InvalidRequest: an option of a wrong kind. All else is raised when the answer is read.
        """
        self._check_open()
        request = generate_request(prompt, options)
        exchange = Generating(request, self.address)
        call = self._router.Generate(request, timeout=timeout, metadata=(*exchange.span.metadata(), *self._edge))
        return self._kept(SyncGeneration(call, exchange, self.address))

    def complete(self, prompt: str = "", *, timeout: float | None = None, **options: Unpack[RequestOptions]) -> Answer:
        """The whole answer at once; arguments as for `generate`."""
        with self.generate(prompt, timeout=timeout, **options) as stream:
            return stream.answer()

    def list_workers(self, model: str = "", *, timeout: float | None = _CALL_S) -> list[pb.WorkerInfo]:
        """All workers that the router knows, by name; with `model` only those that serve it. `timeout`: seconds a page."""
        workers: list[pb.WorkerInfo] = []
        request = pb.ListWorkersRequest(model=model, page_size=1000)
        while True:
            page: pb.ListWorkersResponse = self._unary(self._router.ListWorkers, request, timeout)
            workers += page.workers
            if not page.next_page_token:
                return workers
            request.page_token = page.next_page_token

    def get_worker(self, worker_id: str, *, timeout: float | None = _CALL_S) -> pb.WorkerInfo:
        """One worker. Raises: NotFound."""
        info: pb.WorkerInfo = self._unary(self._router.GetWorker, pb.GetWorkerRequest(worker_id=worker_id), timeout)
        return info

    def drain_worker(self, worker_id: str, undo: bool = False, *, timeout: float | None = _CALL_S) -> pb.WorkerInfo:
        """Take a worker out of service (it finishes what it has), or with `undo` back into it. Raises: NotFound."""
        request = pb.DrainWorkerRequest(worker_id=worker_id, undo=undo)
        info: pb.WorkerInfo = self._unary(self._router.DrainWorker, request, timeout)
        return info

    def watch_routes(
        self, model: str = "", *, timeout: float | None = None
    ) -> SyncStream[pb.RouteTable, pb.RouteTable]:
        """The router's weights, at once and then every 200 ms, for `for`; leaving the loop cancels the call."""
        self._check_open()
        call = self._router.WatchRoutes(pb.WatchRoutesRequest(model=model), timeout=timeout)
        return self._kept(SyncStream(call, Plain[pb.RouteTable](), self.address))

    def watch_scale(
        self, model: str = "", *, timeout: float | None = None
    ) -> SyncStream[pb.ScaleAdvice, pb.ScaleAdvice]:
        """How many workers each model's load asks for, at once and then each change; leaving the loop cancels the call."""
        self._check_open()
        call = self._router.WatchScale(pb.WatchScaleRequest(model=model), timeout=timeout)
        return self._kept(SyncStream(call, Plain[pb.ScaleAdvice](), self.address))

    def wait_ready(self, timeout: float, service: str = "ladr.v1.Router") -> None:
        """Wait until the server says by grpc.health.v1 that requests to `service` are welcome.

        Raises: Unreachable: nothing answered within `timeout` seconds. DeadlineExceeded: it answers, and is not ready.
        """
        self._check_open()
        until = time.monotonic() + timeout
        answered = False
        health = health_pb2_grpc.HealthStub(self._channel)
        while (left := until - time.monotonic()) > 0:
            call = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=left, wait_for_ready=True)
            try:
                for reply in self._kept(SyncStream[Any, Any](call, Plain[Any](), self.address)):
                    answered = True
                    if reply.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except (DeadlineExceeded, Unreachable):
                pass
            time.sleep(_RETRY_S)
        raise not_ready(self.address, timeout, answered)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this client is closed; make another")

    def _kept(self, stream: S) -> S:
        self._streams.add(stream)
        return stream

    def _unary(self, method: Any, request: Any, timeout: float | None) -> Any:
        self._check_open()
        try:
            return method(request, timeout=timeout)
        except grpc.RpcError as failed:
            raise call_failed(failed, self.address) from None
