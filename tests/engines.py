"""Asking an engine directly: requests, and an answer that is held to what every engine owes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from services.worker.engine import Continuation, End, Engine, EngineRequest, Message, Piece, Sampling


def chat(text: str, **sampling: Any) -> EngineRequest:
    """One user turn to the model "chat", greedy and short unless told otherwise."""
    options = {"temperature": 0.0, "max_tokens": 24} | sampling
    return EngineRequest("test", "chat", Sampling(**options), messages=(Message("user", text),))


def raw(text: str, **sampling: Any) -> EngineRequest:
    """A raw prompt to the model "chat", likewise."""
    options = {"temperature": 0.0, "max_tokens": 24} | sampling
    return EngineRequest("test", "chat", Sampling(**options), prompt=text)


async def answer(engine: Engine, request: EngineRequest) -> tuple[list[Piece], End]:
    """All pieces and the end: one end, the last event, and the counts agree."""
    pieces: list[Piece] = []
    end = None
    async with aclosing(engine.generate(request)) as events:  # type: ignore[type-var]  # they are async generators
        async for event in events:
            assert end is None
            if isinstance(event, End):
                end = event
            else:
                pieces.append(event)
    assert end is not None
    before = request.continuation.token_count if request.continuation else 0
    assert before + sum(piece.count for piece in pieces) == end.completion_tokens <= request.sampling.max_tokens
    assert all(len(piece.token_ids) in (0, piece.count) for piece in pieces)
    return pieces, end


def after(request: EngineRequest, pieces: Sequence[Piece], ids: bool = True) -> EngineRequest:
    """The request as it goes on to another worker when the client has these pieces of the answer."""
    told = Continuation(tuple(tokens_of(pieces)) if ids else (), sum(piece.count for piece in pieces), text_of(pieces))
    return replace(request, continuation=told) if told.token_count else request


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def tokens_of(pieces: Sequence[Piece]) -> list[int]:
    return [token for piece in pieces for token in piece.token_ids]
