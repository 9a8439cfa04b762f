"""One request at one worker, as a stream of messages; it holds its lease and its call until it is closed."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any, Self

import grpc
from opentelemetry import trace

from ladr.errors import Cancelled, DeadlineExceeded, EngineFailed, Internal, LadrError, Unreachable
from ladr.routing.channels import Channels
from ladr.routing.lease import Lease
from ladr.routing.wire import Event, event_of
from ladr.status import from_rpc
from ladr.tracing import span_metadata, tracer
from ladr.v1 import generation_pb2

GENERATE = "/ladr.v1.Worker/Generate"
SLOW_S = 0.2  # a client that has not come back for the next message after so long reads slowly


class Attempt:
    """Use it with `with`: leaving the block cancels the call and gives the place at the worker back.

    Args: timeout_s: what is left of the caller's deadline; None: no deadline. judge: told once if it fails. opened: holds it
    while it is open.
    """

    def __init__(
        self,
        lease: Lease,
        channels: Channels,
        request: bytes,
        number: int,
        timeout_s: float | None,
        judge: Callable[[LadrError], object],
        opened: set[Attempt],
    ) -> None:
        self.lease = lease
        self._channels = channels
        self._request = request
        self._number = number
        self._timeout_s = timeout_s
        self._judge = judge
        self._opened = opened
        self._call: Any = None
        self._failed = ""
        self._stack = ExitStack()
        self._given_s = math.inf  # when the newest message was given away; infinite while somebody waits for one
        self._ahead: deque[bytes | Exception] = deque()  # read although nobody asked; bounded by the answer itself
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.waiting = 0  # requests that wait for a slot at the worker, when it took this one

    def __enter__(self) -> Self:
        row = self.lease.row
        address = row.report.address
        with ExitStack() as stack:
            stack.enter_context(self.lease)
            self._span = tracer.start_span(
                "attempt",
                kind=trace.SpanKind.CLIENT,
                attributes={"ladr.worker": row.worker_id, "ladr.attempt": self._number, "server.address": address},
            )
            stack.callback(self._span.end)
            channel = stack.enter_context(self._channels.to(address))
            if not self.lease.revoked and (self._timeout_s is None or self._timeout_s > 0):
                self._call = channel.unary_stream(GENERATE)(
                    self._request, timeout=self._timeout_s, metadata=span_metadata(self._span)
                )
                self.lease.cancel = self._call.cancel
            self._opened.add(self)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the call and give the place back; a second call does nothing."""
        if self not in self._opened:
            return
        self._opened.discard(self)
        if self._reader is not None:
            self._reader.cancel()
        if self._call is not None:
            self._call.cancel()
        if self._failed:
            self._span.set_attribute("error.type", self._failed)
        self._stack.close()

    def read_ahead(self, now_s: float) -> None:
        """If its messages wait for a client that reads slowly: read on, so that the worker's place is not held for that."""
        if now_s - self._given_s > SLOW_S and self._reader is None and not self.lease.ok and self._call is not None:
            self._reader = asyncio.get_running_loop().create_task(self._read_all())

    async def _read_all(self) -> None:
        try:
            while True:
                self._ahead.append(await self._read())
                self._news.set()
        except (StopAsyncIteration, LadrError) as end:
            self._ahead.append(end)
            self._news.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The next message; the lease is told what it means.

        Raises: LadrError: the attempt failed; Unreachable if the worker is gone.
        """
        self._given_s = math.inf
        if self._reader is None:
            message = await self._read()
        else:
            while not self._ahead:
                self._news.clear()
                await self._news.wait()
            first = self._ahead[0]
            if isinstance(first, Exception):
                raise first
            message = self._ahead.popleft()  # type: ignore[assignment]  # seen to be bytes
        self._given_s = time.monotonic()
        return message

    async def _read(self) -> bytes:
        """The next message from the worker."""
        if self._call is None:
            silent = Unreachable("the worker fell silent")
            raise self._fails(silent if self.lease.revoked else DeadlineExceeded("the deadline passed"))
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            if self.lease.ok:
                raise StopAsyncIteration from None
            raise self._fails(_failure(error)) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.lease.revoked or (task is not None and task.cancelling()):
                raise  # the caller went away
            raise self._fails(Unreachable("the worker fell silent")) from None
        if message is grpc.aio.EOF:
            if self.lease.ok:
                raise StopAsyncIteration
            raise self._fails(Unreachable("the worker's stream ended without an end"))
        self._tell(message)
        return bytes(message)

    def _tell(self, message: bytes) -> None:
        """The lease is told what a message means."""
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

    def _fails(self, error: LadrError) -> LadrError:
        self._failed = error.reason
        self._judge(error)
        return error


def _failure(error: grpc.aio.AioRpcError) -> LadrError:
    """What a call's status says of the worker. Nobody here cancelled it; and what it cannot name is its own fault."""
    failure = from_rpc(error.code(), error.details() or "", error.trailing_metadata())
    if isinstance(failure, Unreachable | Cancelled):
        return Unreachable("the worker does not answer")
    if type(failure) in (Internal, LadrError):
        return EngineFailed("the worker failed on this request")
    return failure
