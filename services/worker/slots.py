"""Who may run now: `slots` at once, a bounded number waiting, higher priority first and then first come."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from dataclasses import dataclass
from datetime import timedelta

from ladr.errors import Overloaded


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the slots are at one moment.

    Attributes:
        revision: grows with each change.
        queued_tokens: prompt tokens of those that wait, about.
        accepted: how many were ever taken.
    """

    running: int = 0
    queued: int = 0
    revision: int = 0
    queued_tokens: int = 0
    accepted: int = 0


class Slots:
    """Slots of one engine, on one event loop. `load` is replaced as a whole, so that any thread reads what fits together."""

    def __init__(self, slots: int, queue_limit: int) -> None:
        self.slots = slots
        self.queue_limit = queue_limit
        self.load = Load()
        self._running = 0
        self._queued_tokens = 0
        self._accepted = 0
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, Ticket]] = []

    def enter(self, priority: int, wait_hint: timedelta, tokens: int = 0) -> Ticket:
        """Take a place, running or waiting, with `tokens` to read. Lower `priority` goes first. The ticket must be left in the
        end.

        In a full queue the newest of a lower class gives way. Raises: Overloaded: the queue is full; the caller is told to
        retry after `wait_hint`.
        """
        ticket = Ticket(self, wait_hint, tokens)
        if self._running < self.slots:
            self._admit(ticket)
        else:
            if len(self._waiting) >= self.queue_limit:
                self._evict(priority, wait_hint)
            heapq.heappush(self._waiting, (priority, next(self._order), ticket))
            self._queued_tokens += tokens
        self._accepted += 1
        self._tell()
        return ticket

    def left(self, ticket: Ticket) -> None:
        """A ticket was left: hand its slot on, or forget that it waited."""
        if ticket.admitted:
            self._running -= 1
            while self._waiting and self._running < self.slots:
                _, _, following = heapq.heappop(self._waiting)
                self._queued_tokens -= following.tokens
                self._admit(following)
        else:
            self._forget(ticket)
        self._tell()

    def _admit(self, ticket: Ticket) -> None:
        self._running += 1
        ticket.admit()

    def _evict(self, priority: int, wait_hint: timedelta) -> None:
        last = max(self._waiting, default=None)
        if last is None or last[0] <= priority:
            raise _full(wait_hint)
        last[2].evict()
        self._forget(last[2])

    def _forget(self, ticket: Ticket) -> None:
        self._waiting = [entry for entry in self._waiting if entry[2] is not ticket]
        heapq.heapify(self._waiting)
        self._queued_tokens -= ticket.tokens

    def _tell(self) -> None:
        revision = self.load.revision + 1
        self.load = Load(self._running, len(self._waiting), revision, self._queued_tokens, self._accepted)


class Ticket:
    """A place in the queue, then a slot."""

    def __init__(self, slots: Slots, wait_hint: timedelta, tokens: int) -> None:
        self._slots = slots
        self._wait_hint = wait_hint
        self._turn = asyncio.Event()
        self._evicted = False
        self._left = False
        self.tokens = tokens
        self.admitted = False

    def admit(self) -> None:
        """It has a slot now (called by `Slots`)."""
        self.admitted = True
        self._turn.set()

    def evict(self) -> None:
        """It loses its place in the queue (called by `Slots`)."""
        self._evicted = self._left = True
        self._turn.set()

    async def turn(self) -> None:
        """Wait for the slot. Raises: Overloaded: the place in the queue was given to a higher class."""
        await self._turn.wait()
        if self._evicted:
            raise _full(self._wait_hint)

    def leave(self) -> None:
        """Give the place or the slot back; a second call does nothing."""
        if not self._left:
            self._left = True
            self._slots.left(self)


def _full(wait_hint: timedelta) -> Overloaded:
    return Overloaded("the worker's queue is full", retry_after=wait_hint)
