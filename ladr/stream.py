"""A server's stream, read with asyncio, that cannot be left without being cancelled.

grpcio does not cancel a stream that is dropped (grpc/grpc#43462), so the far end would go on working for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Self, TypeVar

import grpc

from ladr.answer import Answer, Event
from ladr.errors import BrokenStream, Cancelled, LadrError
from ladr.exchange import Exchange, Generating
from ladr.failure import call_failed
from ladr.v1.generation_pb2 import Delta, Finished, GenerateResponse, Started

M = TypeVar("M")
T = TypeVar("T")


class Stream(Generic[M, T]):
    """Read it with `async for`, once. Leaving the loop, leaving its `async with`, or dropping it cancels the call.

    Raises, while it is read: LadrError: the call failed; Cancelled: `cancel` or the client's `close` ended it.
    """

    _over = True  # until there is a call

    def __init__(self, call: Any, exchange: Exchange[M, T], address: str) -> None:
        self._call = call
        self._exchange = exchange
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._once = threading.Lock()
        self._error: LadrError | None = None
        self._begun = False
        self._over = False

    def __aiter__(self) -> AsyncIterator[T]:
        return _Reader(self, self.__anext__)

    async def __anext__(self) -> T:
        while not self._over:
            try:
                if (taken := self._take(await self._call.read())) is not None:
                    return taken
            except BrokenStream as broken:
                self._end(broken)
                self._call.cancel()
            except grpc.aio.AioRpcError as failed:
                self._end(call_failed(failed, self._address, self._begun))
            except LadrError as error:  # of a call that is answered in this process
                self._end(error)
            except asyncio.CancelledError:
                self.cancel()
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Cancel the call, from any thread; nothing happens if it is over."""
        if self._over:
            return
        self._end(Cancelled("this side cancelled the call"))
        with contextlib.suppress(RuntimeError):  # no loop runs here, or this one has closed meanwhile
            if asyncio.get_running_loop() is self._loop:
                self._call.cancel()
                return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._call.cancel)

    def _take(self, message: Any) -> T | None:
        if message is grpc.aio.EOF:
            self._exchange.end()
            self._end(None)
            return None
        if message is None:  # what grpc makes of bytes that it cannot decode
            raise BrokenStream("a message of the stream could not be decoded")
        self._begun = True
        return self._exchange.take(message)

    def _end(self, error: LadrError | None) -> None:
        if self._once.acquire(blocking=False):  # the first ending counts, whichever thread it comes from
            self._error = error
            self._over = True
            self._exchange.over(error)


class _Reader(AsyncIterator[T]):
    """What one `async for` holds, and nobody else: the interpreter drops it when the loop is left, in whatever way."""

    def __init__(self, stream: Stream[Any, Any], step: Callable[[], Awaitable[T]]) -> None:
        self._stream = stream
        self._step = step

    def __anext__(self) -> Awaitable[T]:
        return self._step()

    def __del__(self) -> None:
        self._stream.cancel()


class Generation(Stream[GenerateResponse, Event]):
    """An answer while it is made: `async for` gives its events (Started, Delta, Finished)."""

    _exchange: Generating

    def __init__(self, call: Any, exchange: Generating, address: str) -> None:
        super().__init__(call, exchange, address)

    @property
    def started(self) -> Started | None:
        """Who answers; None before the first event. A later attempt replaces it."""
        return self._exchange.assembly.started

    @property
    def finished(self) -> Finished | None:
        """How it ended; None before that."""
        return self._exchange.assembly.finished

    def text(self) -> AsyncIterator[str]:
        """The answer's text, piece by piece, for `async for`; leaving the loop cancels the call."""
        return _Reader(self, self._next_text)

    async def answer(self) -> Answer:
        """Read what is left, and give the whole answer."""
        async for _ in self:
            pass
        return self._exchange.assembly.answer()

    async def _next_text(self) -> str:
        while True:
            event = await self.__anext__()
            if isinstance(event, Delta) and event.text:
                return event.text
