"""One request at one worker, as a stream of messages; it holds its lease and its call until it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry import trace

from ladr.errors import Cancelled, DeadlineExceeded, LadrError, Unreachable
from ladr.routing.channels import Channels
from ladr.routing.lease import Lease
from ladr.routing.wire import Event, event_of
from ladr.status import from_rpc
from ladr.tracing import span_metadata, tracer
from ladr.v1 import generation_pb2

GENERATE = "/ladr.v1.Worker/Generate"


class Attempt:
    """Use it with `with`: leaving the block cancels the call and gives the place at the worker back.

    Args: timeout_s: what is left of the caller's deadline; None: no deadline. judge: told once if it fails.
    """

    def __init__(
        self,
        lease: Lease,
        channels: Channels,
        request: bytes,
        number: int,
        timeout_s: float | None,
        judge: Callable[[LadrError], object],
    ) -> None:
        self.lease = lease
        self._channels = channels
        self._request = request
        self._number = number
        self._timeout_s = timeout_s
        self._judge = judge
        self._call: Any = None
        self._failed = ""
        self.waiting = 0  # requests that wait for a slot at the worker, when it took this one

    def __enter__(self) -> Self:
        row = self.lease.row
        address = row.report.address
        self._span = tracer.start_span(
            "attempt",
            kind=trace.SpanKind.CLIENT,
            attributes={"ladr.worker": row.worker_id, "ladr.attempt": self._number, "server.address": address},
        )
        self._kept = self._channels.to(address)
        channel = self._kept.__enter__()
        if self._timeout_s is None or self._timeout_s > 0:
            self._call = channel.unary_stream(GENERATE)(
                self._request, timeout=self._timeout_s, metadata=span_metadata(self._span)
            )
            self.lease.cancel = self._call.cancel
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._call is not None:
            self._call.cancel()
        self._kept.__exit__(None, None, None)
        self.lease.release()
        if self._failed:
            self._span.set_attribute("error.type", self._failed)
        self._span.end()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The next message; the lease is told what it means.

        Raises: LadrError: the attempt failed; Unreachable if the worker is gone.
        """
        if self._call is None:
            raise self._fails(DeadlineExceeded("the deadline passed"))
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            if self.lease.ok:
                raise StopAsyncIteration from None
            failure = from_rpc(error.code(), error.details() or "", error.trailing_metadata())
            if isinstance(failure, Unreachable | Cancelled):  # nobody here cancelled it
                failure = Unreachable("the worker does not answer")
            raise self._fails(failure) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.lease.revoked or (task is not None and task.cancelling()):
                raise  # the caller went away
            raise self._fails(Unreachable("the worker fell silent")) from None
        if message is grpc.aio.EOF:
            if self.lease.ok:
                raise StopAsyncIteration
            raise self._fails(Unreachable("the worker's stream ended without an end"))
        match event_of(message):
            case Event.DELTA:
                self.lease.token()
            case Event.STARTED:
                started = generation_pb2.GenerateResponse.FromString(message).started
                self.waiting = started.load.queued
                self.lease.started(started.load if started.HasField("load") else None)
            case Event.FINISHED:
                finished = generation_pb2.GenerateResponse.FromString(message).finished
                self.lease.token()
                self.lease.finished(
                    finished.usage.completion_tokens, finished.load if finished.HasField("load") else None
                )
                self.lease.release()  # now, not when the client has read this: the place is free for the next
        return bytes(message)

    def _fails(self, error: LadrError) -> LadrError:
        self._failed = error.reason
        self._judge(error)
        return error
