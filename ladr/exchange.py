"""What a stream's messages are put through, the same for the async and the sync client. No network here."""

from __future__ import annotations

from typing import Protocol, TypeVar

from ladr.answer import Assembly, Event
from ladr.errors import Cancelled, LadrError
from ladr.tracing import GenerateSpan
from ladr.v1.generation_pb2 import GenerateRequest, GenerateResponse

M = TypeVar("M")
M_in = TypeVar("M_in", contravariant=True)
T_out = TypeVar("T_out", covariant=True)


class Exchange(Protocol[M_in, T_out]):
    """One call's messages in, what its reader gets out."""

    def take(self, message: M_in) -> T_out | None:
        """What the reader gets for a message; None: nothing. Raises: BrokenStream."""

    def end(self) -> None:
        """The server says that this was all. Raises: BrokenStream: it was not."""

    def over(self, error: LadrError | None) -> None:
        """The call is over; told once, in every ending."""


class Plain(Exchange[M, M]):
    """Messages pass as they are."""

    def take(self, message: M) -> M:
        return message

    def end(self) -> None:
        pass

    def over(self, error: LadrError | None) -> None:
        pass


class Generating(Exchange[GenerateResponse, Event]):
    """An answer: its events are checked and kept, and its span is told."""

    def __init__(self, request: GenerateRequest, address: str) -> None:
        self.assembly = Assembly()
        self.span = GenerateSpan(request, address)

    def take(self, message: GenerateResponse) -> Event | None:
        had = self.assembly.tokens
        event = self.assembly.take(message)
        if not had and self.assembly.tokens:
            self.span.first_token()
        return event

    def end(self) -> None:
        self.assembly.end()

    def over(self, error: LadrError | None) -> None:
        if isinstance(error, Cancelled) and self.assembly.finished is not None:
            error = None  # the reader left after the last event, before the empty end of the stream
        self.span.end(self.assembly, error)
