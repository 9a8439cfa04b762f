"""A place for each request: at once where the policy gives one, else after a wait in the room of its model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from random import Random

from ladr.config import RouterSettings
from ladr.errors import Overloaded, TooLate
from ladr.routing import orders, policies
from ladr.routing.board import Scoreboard
from ladr.routing.channels import Channels
from ladr.routing.lease import Lease
from ladr.routing.orders import Priority
from ladr.routing.policies.least_request import LeastRequest
from ladr.routing.policy import Ask, Knob, Policy
from ladr.routing.prober import Prober
from ladr.routing.request import Request
from ladr.routing.row import Row
from ladr.routing.waiting import PATIENCE_S, Room, Waiter

_RESUME_PATIENCE_S = 10.0  # how long a stream that was begun waits while there is no worker at all


_ORDERS = tuple(orders.ORDERS)
_ORDER = Knob("order", 0, len(_ORDERS) - 1, whole=True)


class Binder:
    """Board, policy and rooms of one router. Lives on one event loop.

    Attributes:
        board: the fleet.
        main_policy: what picks while reports come; the fewest open requests, by own counts, while none do.
    """

    def __init__(self, settings: RouterSettings, rng: Random, channels: Channels) -> None:
        self._settings = settings
        self._rng = rng
        self.main_policy = policies.create(settings)
        self._fallback = LeastRequest()
        self._order: str = settings.order
        self._rooms: dict[str, Room] = {}  # by model; only those in which somebody waits
        self._due = False  # the rooms are to be served in the next turn of the loop
        self._prober = Prober(channels)
        self._waiting: dict[Priority, dict[Waiter, Room]] = {priority: {} for priority in Priority}
        self.board = Scoreboard(
            settings.theta,
            settings.ttl.total_seconds(),
            slow_start_s=settings.slow_start.total_seconds(),
            changed=self._row_changed,
        )

    @property
    def knobs(self) -> Sequence[Knob]:
        """What a tuner may turn: the policy's knobs and, where requests wait here, the order in which they are served."""
        return (*self.main_policy.knobs, *((_ORDER,) if self.main_policy.waits else ()))

    def parameters(self) -> dict[str, float]:
        """The knobs' values now, by name; an order by its place in the list of them."""
        order = {_ORDER.name: float(_ORDERS.index(self._order))} if self.main_policy.waits else {}
        return self.main_policy.parameters() | order

    def tune(self, parameters: Mapping[str, float]) -> None:
        """Turn the knobs: the policy's at once, the order for rooms that open from now on."""
        self.main_policy.tune(parameters)
        if _ORDER.name in parameters:
            self._order = _ORDERS[round(parameters[_ORDER.name])]

    def waiting_for(self, model: str) -> int:
        """Requests that wait here for a worker with this model."""
        return len(self._rooms[model]) if model in self._rooms else 0

    def waited_for(self) -> set[str]:
        """Models that somebody waits for."""
        return set(self._rooms)

    def policy(self, now_s: float) -> Policy:
        """The policy that picks now."""
        return self._fallback if self.board.blind(now_s) else self.main_policy

    def changed(self) -> None:
        """The board has news, or time has passed: see whether those who wait can be served."""
        if self._rooms and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._serve)

    async def close(self) -> None:
        """End what goes on beside the requests."""
        await self._prober.close()

    async def lease(self, request: Request, model: str, ask: Ask, tried: set[Row], strict: bool = False) -> Lease:
        """A place at a worker that was not tried yet, else at one that was; waits for it as long as it may.

        Args: strict: those that were tried would refuse it again.
        Raises: NoWorker, Overloaded, DeadlineExceeded.
        """
        room = self._rooms.get(model)
        if room is None:
            lease = self.bind(model, ask, tried, strict)
            if lease:
                return lease
            room = Room(
                orders.create(self._order),
                lambda waiter: self.bind(model, waiter.ask, waiter.tried, waiter.strict),
                lambda: bool(self.board.eligible(model, time.monotonic())),
            )
        waiter = request.waiter(ask, frozenset(tried), strict, self._settings)
        if not request.answered:
            self._admit(waiter, room)
        self._rooms[model] = room
        self._waiting[waiter.priority][waiter] = room
        try:
            patience_s = _RESUME_PATIENCE_S if request.answered else PATIENCE_S
            return await room.lease(waiter, self._settings.queue_timeout.total_seconds(), patience_s)
        finally:
            del self._waiting[waiter.priority][waiter]
            if not len(room) and self._rooms.get(model) is room:
                del self._rooms[model]

    @property
    def waiting(self) -> int:
        """Requests that wait here for a worker."""
        return sum(map(len, self._waiting.values()))

    def _admit(self, waiter: Waiter, room: Room) -> None:
        """Whether one more may wait; in a full queue the newest of the lowest class gives way to a higher one.

        Raises: Overloaded: it may not. TooLate: its turn would come too late.
        """
        wait_s = room.wait_s(waiter.priority)
        if waiter.refuse_s is not None and wait_s and time.monotonic() + wait_s > waiter.refuse_s:
            raise TooLate("the request would not be answered in time", retry_after=room.hint())
        if self.waiting < self._settings.queue_limit:
            return
        for lower in sorted(self._waiting, reverse=True):
            if lower > waiter.priority and self._waiting[lower]:
                newest = next(reversed(self._waiting[lower]))
                self._waiting[lower][newest].evict(newest)
                return
        raise Overloaded("too many requests wait for a worker", retry_after=room.hint())

    def bind(
        self, model: str, ask: Ask, tried: Collection[Row], strict: bool = False, only_fresh: bool = False
    ) -> Lease | None:
        """A place at the worker that the policy picks now; None: it is better to wait, or there is nobody.

        One that was tried gets it only if no other is free now, or with `strict` if there is no other at all, or with
        `only_fresh` never.
        """
        now_s = time.monotonic()
        rows = self.board.eligible(model, now_s)
        fresh = [row for row in rows if row not in tried] if tried else rows
        policy = self.policy(now_s)
        row = policy.pick(fresh, ask, self._rng, now_s) if fresh else None
        if row is None and len(fresh) < len(rows) and not only_fresh and not (strict and fresh):
            row = policy.pick(rows, ask, self._rng, now_s)
        if row is None:
            return None
        self._prober.probe(policy.probes(rows, self._rng), policy)
        return Lease(row, ask, self.main_policy, self._row_changed)

    def _row_changed(self, row: Row) -> None:
        self.main_policy.changed(row, self._rng)
        self.changed()

    def _serve(self) -> None:
        self._due = False
        for room in list(self._rooms.values()):
            room.serve()
