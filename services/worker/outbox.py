"""What the engine has made and the client has not been sent. Tokens may wait a moment for company, so that each message
carries several: most of what a token costs on its way is the message around it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ladr.errors import LadrError
from services.worker.engine import End, Piece
from services.worker.slots import Load


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an answer, and how busy the worker was once its slot was free."""

    end: End
    load: Load


Event = Piece | Ended | LadrError


class Outbox:
    """Events of one answer, on one event loop: `put` by the engine's side, taken by the client's. The last is an end or an
    error.

    The first piece, an end and an error wait for nothing. Other pieces wait until there are `batch_tokens` tokens, `delay_s` at
    most. How much it holds is bounded by the answer's max_tokens.
    """

    def __init__(self, batch_tokens: int = 1, delay_s: float = 0.0) -> None:
        self._batch_tokens = batch_tokens
        self._delay_s = delay_s
        self._events: list[Event] = []
        self._tokens = 0
        self._begun = False
        self._ready = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)
        if isinstance(event, Piece) and self._begun:
            self._tokens += max(event.count, 1)
            if self._tokens < self._batch_tokens:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._ready.set)
                return
        self._begun = True
        self._ready.set()

    async def take(self) -> list[Event]:
        """All events that wait, at least one, once some of them are due."""
        await self._ready.wait()
        self._ready.clear()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        events, self._events, self._tokens = self._events, [], 0
        return events
