"""Requests that wait for a worker in the router, where each can still go to whichever is free first (late binding)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

from ladr.errors import DeadlineExceeded, LadrError, NoWorker, Overloaded
from ladr.routing.lease import Lease
from ladr.routing.orders import Entry, Order, Priority
from ladr.routing.policy import Ask
from ladr.routing.row import Row

PATIENCE_S = 1.0  # how long a request waits while nobody at all may take it
_RETRY_AFTER = timedelta(seconds=1)
_RATE_WINDOW_S = 5.0
_LEAST_SERVED = 10  # before their pace says anything
_SHORTEST_HINT_S, _LONGEST_HINT_S = 0.05, 60.0


def passed(hint: timedelta) -> LadrError:
    """What a request gets that waited until its deadline."""
    return DeadlineExceeded("the deadline passed before a worker was free")


@dataclass(eq=False)
class Waiter(Entry):
    """A request in the room: what its order goes by, and what it waits for.

    Attributes:
        here: it is in the room.
        tried: workers that failed it; another is better. strict: those would refuse it again, so only another will do.
        refuse_s: when it is of no use any more, with the error that says so; None: never.
    """

    ask: Ask = field(default_factory=Ask)
    here: bool = False
    refuse_s: float | None = None
    refusal: Callable[[timedelta], LadrError] = passed
    tried: frozenset[Row] = frozenset()
    strict: bool = False
    lease: asyncio.Future[Lease] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Room:
    """Those who wait for one model.

    Args:
        bind: gives a lease for a waiter now, or None.
        anybody: whether any worker may take requests at all.
    """

    def __init__(
        self,
        order: Order,
        bind: Callable[[Waiter], Lease | None],
        anybody: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._order = order
        self._bind = bind
        self._anybody = anybody
        self._clock = clock
        self._bound: deque[float] = deque(maxlen=1024)  # when the newest left with a lease
        self._seen_s = clock()  # when somebody was last there who may take requests
        self._classes: Counter[Priority] = Counter()

    def __len__(self) -> int:
        return len(self._order)

    async def lease(self, waiter: Waiter, timeout_s: float, patience_s: float = PATIENCE_S) -> Lease:
        """Wait for a worker; `timeout_s` bounds the wait, and `patience_s` without any worker at all ends it.

        Raises: NoWorker, Overloaded: nobody took it in time. DeadlineExceeded: its deadline passed.
        """
        self._order.push(waiter, self._clock())
        waiter.here = True
        self._classes[waiter.priority] += 1
        try:
            self.serve()
            await self._wait(waiter, timeout_s, patience_s)
            return waiter.lease.result()
        except BaseException:
            if waiter.lease.done() and not waiter.lease.cancelled() and waiter.lease.exception() is None:
                waiter.lease.result().release()  # bound in the very moment in which its caller went away
            raise
        finally:
            if waiter.here:
                self._order.remove(waiter)
                self._left(waiter)

    async def _wait(self, waiter: Waiter, timeout_s: float, patience_s: float) -> None:
        began_s = self._clock()
        give_up_s = began_s + timeout_s
        refuse_s = waiter.refuse_s if waiter.refuse_s is not None else give_up_s
        while not waiter.lease.done():
            now_s = self._clock()
            self._look(now_s)
            lonely_s = max(self._seen_s, began_s) + patience_s  # when to give up if there is nobody
            until_s = min(give_up_s, lonely_s, refuse_s)
            if now_s < until_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(waiter.lease), until_s - now_s)
            elif waiter.refuse_s is not None and now_s >= waiter.refuse_s:
                raise waiter.refusal(self.hint())
            elif now_s >= give_up_s:
                raise Overloaded("no worker was free in time", retry_after=self.hint())
            else:
                raise NoWorker("no worker can take the request now", retry_after=_RETRY_AFTER)

    def _look(self, now_s: float) -> None:
        if self._anybody():
            self._seen_s = now_s

    def serve(self) -> None:
        """Bind those who wait, in their order, for as long as there is a worker for the first of them.

        One that only another worker will do than is free is passed by, and keeps its place.
        """
        now_s = self._clock()
        self._look(now_s)
        passed_by: list[Waiter] = []
        while (entry := self._order.peek(now_s)) is not None:
            first = cast(Waiter, entry)  # nothing else is pushed
            if first.lease.done() or (first.refuse_s is not None and now_s >= first.refuse_s):
                self._order.remove(first)  # cancelled, or about to be refused by its own clock
                self._left(first)
                continue
            lease = self._bind(first)
            if lease is not None:
                self._order.pop(now_s)
                self._left(first)
                self._bound.append(now_s)
                first.lease.set_result(lease)
            elif first.strict:
                self._order.remove(first)
                passed_by.append(first)
            else:
                break
        for waiter in passed_by:
            self._order.push(waiter, now_s)

    def _left(self, waiter: Waiter) -> None:
        waiter.here = False
        self._classes[waiter.priority] -= 1

    def evict(self, waiter: Waiter) -> None:
        """Turn one away whose place a request of a higher class needs."""
        if not waiter.lease.done():
            waiter.lease.set_exception(
                Overloaded("the place in the queue was given to a higher class", retry_after=self.hint())
            )

    def hint(self) -> timedelta:
        """When a request that is turned away now may find room: those who wait, by the pace at which they are served."""
        return timedelta(seconds=min(max(self.wait_s() or 1.0, _SHORTEST_HINT_S), _LONGEST_HINT_S))

    def wait_s(self, priority: Priority = Priority.BATCH) -> float | None:
        """How long one more of a class will wait, behind those of the same and higher ones, by the pace of the last seconds.

        None while nothing is known.
        """
        now_s = self._clock()
        recent = [at_s for at_s in self._bound if at_s > now_s - _RATE_WINDOW_S]
        if len(recent) < _LEAST_SERVED:
            return None
        ahead = sum(count for each, count in self._classes.items() if each <= priority)
        return ahead * max(now_s - recent[0], _SHORTEST_HINT_S) / len(recent)
