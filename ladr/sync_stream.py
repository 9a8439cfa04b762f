"""A server's stream, read from a thread, that cannot be left without being cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

import grpc

from ladr.answer import Answer, Event
from ladr.errors import BrokenStream, Cancelled, LadrError
from ladr.exchange import Exchange, Generating
from ladr.failure import call_failed
from ladr.v1.generation_pb2 import Delta, Finished, GenerateResponse, Started

M = TypeVar("M")
T = TypeVar("T")


class SyncStream(Generic[M, T]):
    """Read it with `for`, once. Leaving the loop, leaving its `with`, or dropping it cancels the call.

    Raises, while it is read: LadrError: the call failed; Cancelled: `cancel` or the client's `close` ended it.
    """

    _over = True  # until there is a call

    def __init__(self, call: Any, exchange: Exchange[M, T], address: str) -> None:
        self._call = call
        self._exchange = exchange
        self._address = address
        self._once = threading.Lock()
        self._error: LadrError | None = None
        self._begun = False
        self._over = False

    def __iter__(self) -> Iterator[T]:
        return _Reader(self, self.__next__)

    def __next__(self) -> T:
        while not self._over:
            try:
                if (taken := self._take(next(self._call, grpc.aio.EOF))) is not None:
                    return taken
            except BrokenStream as broken:
                self._end(broken)
                self._call.cancel()
            except grpc.RpcError as failed:
                self._end(call_failed(failed, self._address, self._begun))
            except BaseException:  # Ctrl-C above all
                self.cancel()
                raise
        if self._error is not None:
            raise self._error
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Cancel the call, from any thread; nothing happens if it is over."""
        if not self._over:
            self._end(Cancelled("this side cancelled the call"))
            self._call.cancel()

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


class _Reader(Iterator[T]):
    """What one `for` holds, and nobody else: the interpreter drops it when the loop is left, in whatever way."""

    def __init__(self, stream: SyncStream[Any, Any], step: Callable[[], T]) -> None:
        self._stream = stream
        self._step = step

    def __next__(self) -> T:
        return self._step()

    def __del__(self) -> None:
        self._stream.cancel()


class SyncGeneration(SyncStream[GenerateResponse, Event]):
    """An answer while it is made: `for` gives its events (Started, Delta, Finished)."""

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

    def text(self) -> Iterator[str]:
        """The answer's text, piece by piece, for `for`; leaving the loop cancels the call."""
        return _Reader(self, self._next_text)

    def answer(self) -> Answer:
        """Read what is left, and give the whole answer."""
        for _ in self:
            pass
        return self._exchange.assembly.answer()

    def _next_text(self) -> str:
        while True:
            event = self.__next__()
            if isinstance(event, Delta) and event.text:
                return event.text
