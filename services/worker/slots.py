"""Who may run now: `slots` at once, a bounded number waiting, higher priority first and then first come."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from datetime import timedelta

from ladr.errors import Overloaded


class Slots:
    """Slots of one engine. `running` and `queued` are plain numbers that any thread may read."""

    def __init__(self, slots: int, queue_limit: int) -> None:
        self.slots = slots
        self.queue_limit = queue_limit
        self.running = 0
        self.queued = 0
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, Ticket]] = []

    def enter(self, priority: int, wait_hint: timedelta) -> Ticket:
        """Take a place, running or waiting. Lower `priority` goes first. The ticket must be left in the end.

        In a full queue the newest of a lower class gives way. Raises: Overloaded: the queue is full; the caller is told to
        retry after `wait_hint`.
        """
        ticket = Ticket(self, wait_hint)
        if self.running < self.slots:
            ticket.admit()
            return ticket
        if self.queued >= self.queue_limit:
            self._evict(priority, wait_hint)
        self.queued += 1
        heapq.heappush(self._waiting, (priority, next(self._order), ticket))
        return ticket

    def _evict(self, priority: int, wait_hint: timedelta) -> None:
        last = max(self._waiting, default=None)
        if last is None or last[0] <= priority:
            raise _full(wait_hint)
        last[2].evict()
        last[2].leave()

    def left(self, ticket: Ticket) -> None:
        """A ticket was left: hand its slot on, or forget that it waited."""
        if ticket.admitted:
            self.running -= 1
            while self._waiting and self.running < self.slots:
                _, _, following = heapq.heappop(self._waiting)
                self.queued -= 1
                following.admit()
        else:
            self.queued -= 1
            self._waiting = [entry for entry in self._waiting if entry[2] is not ticket]
            heapq.heapify(self._waiting)


class Ticket:
    """A place in the queue, then a slot."""

    def __init__(self, slots: Slots, wait_hint: timedelta) -> None:
        self._slots = slots
        self._wait_hint = wait_hint
        self._turn = asyncio.Event()
        self._evicted = False
        self._left = False
        self.admitted = False

    def admit(self) -> None:
        """It has a slot now (called by `Slots`)."""
        self._slots.running += 1
        self.admitted = True
        self._turn.set()

    def evict(self) -> None:
        """It loses its place in the queue (called by `Slots`)."""
        self._evicted = True
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
