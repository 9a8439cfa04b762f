"""What routing costs the router's event loop, for 10, 100 and 1,000 workers, and what it costs to tell of it.

In one process, without a network: a tick (silent workers, the table of scores and weights, every 200 ms), the eligible workers
of a model (after a change, and as they are kept until the next), hearing an update of the bus, from bytes, that holds a new
report of every worker, and with each policy a pick and the whole of a binding: pick, count the request at the worker, give it
back. Each is timed alone, in processor time, many times a round; given are medians (least–greatest).

Told: a router process with a played fleet of 1,000 workers, each with a report every 200 ms, and 100 clients that watch its
table with reports and changes only, as clients do that look aside. All workers are busy, or 5 % of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import get_args

from benchmarks.helper import Helper, helper
from benchmarks.machine import cpu_s
from benchmarks.played_bus import MODEL, Played, played_bus
from benchmarks.report import Report, Spread, Table
from ladr.config import RouterSettings
from ladr.routing.lease import Lease
from ladr.routing.policy import Ask
from ladr.routing.router import Router
from ladr.routing.sink import Sink
from ladr.v1 import metrics_pb2, router_pb2, router_pb2_grpc
from services.router.routes import Routes
from tests.load import channel_to
from tests.processes import Process

POLICIES: tuple[str, ...] = get_args(RouterSettings.model_fields["policy"].annotation)
PER_S = 5  # ticks, and reports of each worker
CALLS = 20_000  # a round, divided by the number of workers
BUSY = {"all": 1.0, "5 %": 0.05}


def run(quick: bool) -> Report:
    """Time it, in about a minute and a half. Quick: one short round, 10 and 100 workers, 5 clients."""
    rounds, calls = (1, 300) if quick else (5, CALLS)
    sizes = (10, 100) if quick else (10, 100, 1_000)
    return Report(
        [
            *_parts(sizes, rounds, calls),
            _picks(sizes, rounds, calls),
            asyncio.run(_told(100, 5, 0.5) if quick else _told(1_000, 100, 6.0)),
        ],
        ["All workers serve the model that is asked for, so that all are candidates."],
    )


def _parts(sizes: tuple[int, ...], rounds: int, calls: int) -> list[Table]:
    parts = Table(
        "Processor time of each",
        ("workers", "tick [µs]", "eligible, changed [µs]", "eligible, kept [µs]", "hear all [µs]", "hear one [µs]"),
    )
    shares = Table("Share of one core", ("workers", "ticks [%]", "reports [%]"))
    for workers in sizes:
        fleet = _Fleet(workers, RouterSettings().policy)
        tick, changed, kept, hear = (
            Spread.of([part(calls // workers) * 1e6 for _ in range(rounds)])
            for part in (fleet.tick_s, fleet.changed_s, fleet.kept_s, fleet.hear_s)
        )
        parts.add(workers, tick, changed, kept, hear, hear.median / workers)
        shares.add(workers, tick.median * PER_S / 1e4, hear.median * PER_S / 1e4)
    return [parts, shares]


def _picks(sizes: tuple[int, ...], rounds: int, calls: int) -> Table:
    columns = [f"{what}, {workers:,} [µs]" for what in ("pick", "bind") for workers in sizes]
    table = Table("A request's choice, by policy and number of workers", ("policy", *columns))
    for policy in POLICIES:
        fleets = [_Fleet(workers, policy) for workers in sizes]
        picks = [
            Spread.of([part(fleet, max(calls // 20, 10)) * 1e6 for _ in range(rounds)])
            for part in (_Fleet.pick_s, _Fleet.bind_s)
            for fleet in fleets
        ]
        table.add(policy, *picks)
    return table


class _Fleet:
    """A router that has heard of so many workers; each method gives the mean seconds of one call."""

    def __init__(self, workers: int, policy: str) -> None:
        settings = RouterSettings.model_validate(
            {"policy": policy, "slow_start": "0s"}
        )  # as if all had been there long
        self._rng = Random(0)
        self._played = Played(workers)
        router = Router(settings, self._rng, lambda: "id", Sink())
        self._board, self._policy = router.board, router.binder.main_policy
        self._routes = Routes(self._board, router.binder.policy, self._policy, settings)
        self._ask = Ask(prompt_tokens=128, answer_tokens=128.0)
        self.hear_s(3)
        assert len(self._board.eligible(MODEL, time.monotonic())) == workers

    def tick_s(self, calls: int) -> float:
        self.hear_s(1)

        def tick() -> None:
            now_s = time.monotonic()
            self._board.sweep(now_s)
            self._routes.tick(now_s)

        return _mean_s(tick, calls)

    def changed_s(self, calls: int) -> float:
        self.hear_s(1)

        def look() -> None:
            self._board.renew()
            self._board.eligible(MODEL, time.monotonic())

        return _mean_s(look, calls)

    def kept_s(self, calls: int) -> float:
        self.hear_s(1)
        self._board.eligible(MODEL, time.monotonic())
        return _mean_s(lambda: self._board.eligible(MODEL, time.monotonic()), calls)

    def pick_s(self, calls: int) -> float:
        self.hear_s(1)
        now_s = time.monotonic()
        rows, policy = self._board.eligible(MODEL, now_s), self._policy
        return _mean_s(lambda: policy.pick(rows, self._ask, self._rng, now_s), calls)

    def bind_s(self, calls: int) -> float:
        self.hear_s(1)
        now_s = time.monotonic()
        rows, policy = self._board.eligible(MODEL, now_s), self._policy

        def bind() -> None:
            row = policy.pick(rows, self._ask, self._rng, now_s)
            assert row is not None
            Lease(row, self._ask, policy, lambda row: policy.changed(row, self._rng)).release()

        return _mean_s(bind, calls)

    def hear_s(self, calls: int) -> float:
        updates = iter([self._played.update() for _ in range(calls)])

        def hear() -> None:
            update = metrics_pb2.FleetUpdate.FromString(next(updates))
            self._board.hear(update, time.monotonic())

        return _mean_s(hear, calls)


def _mean_s(work: Callable[[], object], calls: int) -> float:
    began_s = time.thread_time()
    for _ in range(calls):
        work()
    return (time.thread_time() - began_s) / calls


@dataclass(frozen=True)
class _Flow:
    """Over some seconds: the processor time of router and client, and what all watchers heard."""

    seconds: float
    router_s: float
    client_s: float
    tables: int
    size: int


async def _told(workers: int, watchers: int, seconds: float) -> Table:
    table = Table(
        f"A table of {workers:,} workers for {watchers} clients",
        (
            *("busy", "router alone [% of a core]", "watched [% of a core]", "tables to each [1/s]", "a table [KB]"),
            *("in all [MB/s]", "client, a table [ms]", "client [% of a core]"),
        ),
    )
    for name, busy in BUSY.items():
        alone, watched, aside = await _told_by(Played(workers, busy), watchers, seconds)
        table.add(
            name,
            100 * alone.router_s / alone.seconds,
            100 * watched.router_s / watched.seconds,
            watched.tables / watchers / watched.seconds,
            watched.size / max(watched.tables, 1) / 1e3,
            watched.size / watched.seconds / 1e6,
            1e3 * aside.client_s / (aside.seconds * PER_S),
            100 * aside.client_s / aside.seconds,
        )
    return table


async def _told_by(played: Played, watchers: int, seconds: float) -> tuple[_Flow, _Flow, _Flow]:
    """Nobody watches, all watch, one looks aside."""
    async with played_bus(played) as bus, _router(bus, played) as router:
        async with helper("benchmarks.watch_client", router.address, "0") as client:
            aside = await _flow(router, client, seconds)
        alone = await _flow(router, None, seconds)
        async with helper("benchmarks.watch_client", router.address, str(watchers)) as client:
            watched = await _flow(router, client, seconds)
    return alone, watched, aside


async def _flow(router: Process, client: Helper | None, seconds: float) -> _Flow:
    await (client.ask() if client else asyncio.sleep(0))
    await asyncio.sleep(seconds / 3)  # the first tables are whole
    before = await client.ask() if client else {"tables": 0, "bytes": 0}
    began_s, router_s, client_s = time.monotonic(), cpu_s(router.pid), cpu_s(client.pid) if client else 0.0
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - began_s
    router_s, client_s = cpu_s(router.pid) - router_s, cpu_s(client.pid) - client_s if client else 0.0
    after = await client.ask() if client else before
    return _Flow(took_s, router_s, client_s, after["tables"] - before["tables"], after["bytes"] - before["bytes"])


@asynccontextmanager
async def _router(bus: str, played: Played) -> AsyncIterator[Process]:
    """A router that has heard of the whole fleet."""
    process = Process("router", {"LADR_ROUTER__BUS": bus})
    try:
        await process.start()
        async with channel_to(process.address) as channel, asyncio.timeout(30):
            call = router_pb2_grpc.RouterStub(channel).WatchRoutes(router_pb2.WatchRoutesRequest())
            try:
                async for table in call:
                    if len(table.routes) == played.workers:
                        break
            finally:
                call.cancel()
        yield process
    finally:
        await process.kill()
