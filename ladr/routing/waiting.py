"""Requests that wait for a worker in the router, where each can still go to whichever is free first (late binding)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

from ladr.errors import DeadlineExceeded, LadrError, NoWorker, Overloaded
from ladr.routing.lease import Lease
from ladr.routing.orders import Entry, Order
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
        refuse_s: when it is of no use any more, with the error that says so; None: never.
    """

    ask: Ask = field(default_factory=Ask)
    here: bool = False
    refuse_s: float | None = None
    refusal: Callable[[timedelta], LadrError] = passed
    tried: frozenset[Row] = frozenset()
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

    def __len__(self) -> int:
        return len(self._order)

    async def lease(self, waiter: Waiter, timeout_s: float, patience_s: float = PATIENCE_S) -> Lease:
        """Wait for a worker; `timeout_s` bounds the wait, and `patience_s` without any worker at all ends it.

        Raises: NoWorker, Overloaded: nobody took it in time. DeadlineExceeded: its deadline passed.
        """
        self._order.push(waiter, self._clock())
        waiter.here = True
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

    async def _wait(self, waiter: Waiter, timeout_s: float, patience_s: float) -> None:
        give_up_s = self._clock() + timeout_s
        lonely_s = self._clock() + patience_s  # when to give up if there is nobody
        refuse_s = waiter.refuse_s if waiter.refuse_s is not None else give_up_s
        while not waiter.lease.done():
            now_s = self._clock()
            until_s = min(give_up_s, lonely_s, refuse_s)
            if now_s < until_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(waiter.lease), until_s - now_s)
            elif waiter.refuse_s is not None and now_s >= waiter.refuse_s:
                raise waiter.refusal(self.hint())
            elif not self._anybody():
                raise NoWorker("no worker can take the request now", retry_after=_RETRY_AFTER)
            elif now_s >= give_up_s:
                raise Overloaded("no worker was free in time", retry_after=self.hint())
            else:
                lonely_s = now_s + patience_s

    def serve(self) -> None:
        """Bind those who wait, in their order, for as long as there is a worker for the first of them."""
        now_s = self._clock()
        while (entry := self._order.peek(now_s)) is not None:
            first = cast(Waiter, entry)  # nothing else is pushed
            if not first.lease.done() and (first.refuse_s is None or now_s < first.refuse_s):
                lease = self._bind(first)
                if lease is None:
                    return
                self._bound.append(now_s)
                first.lease.set_result(lease)
                self._order.pop(now_s)
            else:  # cancelled, or about to be refused by its own clock
                self._order.remove(first)
            first.here = False

    def hint(self) -> timedelta:
        """When a request that is turned away now may find room: those who wait, by the pace at which they are served."""
        return timedelta(seconds=min(max(self.wait_s() or 1.0, _SHORTEST_HINT_S), _LONGEST_HINT_S))

    def wait_s(self) -> float | None:
        """How long the last in line will wait, by the pace of the last seconds; None while nothing is known."""
        now_s = self._clock()
        recent = [at_s for at_s in self._bound if at_s > now_s - _RATE_WINDOW_S]
        if len(recent) < _LEAST_SERVED:
            return None
        return len(self._order) * max(now_s - recent[0], _SHORTEST_HINT_S) / len(recent)
