"""What routing costs the router's event loop, for 10, 100 and 1,000 workers.

In one process, without a network: a tick (the table of scores and weights, every 200 ms), one request's choice in its parts
(the model's name, the eligible workers, the draw of ladr-weighted), and hearing an update of the bus, from bytes, that holds a
new report of every worker. Each is timed alone, in processor time, many times a round; given are medians (least–greatest).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from random import Random

from prometheus_client import CollectorRegistry
from services.router.router import Router
from services.router.stats import RouterStats

from benchmarks.report import Report, Spread, Table
from ladr.config import RouterSettings
from ladr.routing.policies.ladr_weighted import LadrWeighted
from ladr.v1 import fleet_pb2, metrics_pb2
from services.router.routes import Routes

MODEL = "chat"
PER_S = 5  # ticks, and reports of each worker
CALLS = 20_000  # a round, divided by the number of workers


def run(quick: bool) -> Report:
    """Time it. Quick: one short round, 10 and 100 workers."""
    rounds, calls = (1, 300) if quick else (7, CALLS)
    parts = Table(
        "Processor time of each",
        ("workers", "tick [µs]", "name [µs]", "eligible [µs]", "draw [µs]", "hear all [µs]", "hear one [µs]"),
    )
    shares = Table("Share of one core", ("workers", "ticks [%]", "reports [%]", "choices, 100 requests/s [%]"))
    for workers in (10, 100) if quick else (10, 100, 1_000):
        fleet = _Fleet(workers)
        tick, name, eligible, draw, hear = (
            Spread.of([part(calls // workers) * 1e6 for _ in range(rounds)])
            for part in (fleet.tick_s, fleet.name_s, fleet.eligible_s, fleet.draw_s, fleet.hear_s)
        )
        parts.add(workers, tick, name, eligible, draw, hear, hear.median / workers)
        choice_us = name.median + eligible.median + draw.median
        shares.add(workers, tick.median * PER_S / 1e4, hear.median * PER_S / 1e4, choice_us / 100)
    return Report([parts, shares], ["All workers serve the model that is asked for, so that all are candidates."])


class _Fleet:
    """A router that has heard of so many workers; each method gives the mean seconds of one call."""

    def __init__(self, workers: int) -> None:
        settings = RouterSettings()
        self._workers = workers
        self._rng = Random(0)
        self._router = Router(settings, RouterStats(CollectorRegistry()), self._rng)
        self._routes = Routes(self._router.board, self._router.policy, settings.policy, settings.alpha, settings.beta)
        self._policy = LadrWeighted(settings.alpha, settings.beta)
        self._sequence = 0
        self.hear_s(3)

    def tick_s(self, calls: int) -> float:
        return _mean_s(lambda: self._routes.tick(time.monotonic()), calls)

    def name_s(self, calls: int) -> float:
        return _mean_s(lambda: self._router.resolve(MODEL), calls)

    def eligible_s(self, calls: int) -> float:
        return _mean_s(lambda: self._router.board.eligible(MODEL, time.monotonic()), calls)

    def draw_s(self, calls: int) -> float:
        self.hear_s(1)
        rows = self._router.board.eligible(MODEL, time.monotonic())
        assert len(rows) == self._workers
        return _mean_s(lambda: self._policy.pick(rows, self._rng), calls)

    def hear_s(self, calls: int) -> float:
        updates = iter([self._update().SerializeToString() for _ in range(calls)])

        def hear() -> None:
            update = metrics_pb2.FleetUpdate.FromString(next(updates))
            self._router.board.hear(update, time.monotonic())

        return _mean_s(hear, calls)

    def _update(self) -> metrics_pb2.FleetUpdate:
        """An update with a newer report of every worker."""
        self._sequence += 1
        update = metrics_pb2.FleetUpdate()
        for number in range(self._workers):
            report = _report(f"worker-{number}", self._sequence, self._rng)
            update.workers.add(report=report).age.FromTimedelta(timedelta(milliseconds=20))
        return update


def _report(worker_id: str, sequence: int, rng: Random) -> fleet_pb2.WorkerReport:
    report = fleet_pb2.WorkerReport(
        worker_id=worker_id,
        incarnation="0193b2c4-7a31-7d1e-9f2b-1f7c9b0e4a55",
        sequence=sequence,
        address="10.0.0.1:50061",
        state=fleet_pb2.WORKER_STATE_READY,
        models=[fleet_pb2.ModelStatus(name=MODEL, state=fleet_pb2.MODEL_STATE_READY, context_tokens=4096)],
        engine="simulated",
        slots=32,
        running=rng.randrange(33),
        queued=rng.randrange(9),
        tokens_per_second=1_000.0,
    )
    for totals, typical_s in ((report.time_to_first_token, 0.2), (report.time_per_output_token, 0.02)):
        totals.count = 10 * sequence
        totals.sum.FromTimedelta(timedelta(seconds=totals.count * typical_s * rng.uniform(0.9, 1.1)))
    return report


def _mean_s(work: Callable[[], object], calls: int) -> float:
    began_s = time.thread_time()
    for _ in range(calls):
        work()
    return (time.thread_time() - began_s) / calls
