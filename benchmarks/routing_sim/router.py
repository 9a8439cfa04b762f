"""What services/router does with a request, without gRPC: the queue, the lease, retries, and what messages tell.

Policies, rows, leases, health and orders are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from benchmarks.routing_sim.scenario import DEADLINE_S, Scenario
from benchmarks.routing_sim.worker import Schedule, Visit, Worker
from ladr.config import RouterSettings
from ladr.routing import health
from ladr.routing.lease import Lease
from ladr.routing.orders import ORDERS, Entry
from ladr.routing.policies import create
from ladr.routing.row import Row
from ladr.v1 import fleet_pb2, generation_pb2

if TYPE_CHECKING:
    from benchmarks.routing_sim.simulation import Job

MAX_ATTEMPTS = 4
MAX_TAKEN_BACK = 16
SWEEP_S = 0.2
BUS_S = 0.001  # what a report takes to a router


class Router:
    """One of `scenario.routers`; the others are known to it only by what the workers tell."""

    def __init__(
        self,
        workers: list[Worker],
        settings: RouterSettings,
        scenario: Scenario,
        clock: Callable[[], float],
        schedule: Schedule,
        seed: str,
    ) -> None:
        self._clock = clock
        self._schedule = schedule
        self._rng = Random(seed)
        self.policy = create(settings)
        self._order = ORDERS[scenario.order]()
        self._waiting: dict[Entry, Job] = {}
        self._entries: dict[Job, Entry] = {}
        self._visits: dict[Job, _Sent] = {}
        self._sequence = 0
        self._report_s = scenario.report_s
        self._healthy = not any(trouble.fails for trouble in scenario.troubles)
        self.probes = 0
        self._rows: list[Row] = []
        self._workers: dict[Row, Worker] = {}
        for worker in workers:
            row = Row(worker.report(0.0), settings.theta)
            row.hear(row.report, 0.0)
            self._rows.append(row)
            self._workers[row] = worker
            self._changed(row)
            schedule(self._rng.uniform(0, self._report_s), self._reports, row)
        if not self._healthy:
            schedule(SWEEP_S, self._sweep, None)

    def _changed(self, row: Row) -> None:
        self.policy.changed(row, self._rng)

    # what workers tell

    def _reports(self, row: Row) -> None:
        now_s = self._clock()
        self._schedule(now_s + BUS_S, self._hears, (row, self._workers[row].report(now_s)))
        self._schedule(now_s + self._report_s, self._reports, row)

    def _hears(self, what: tuple[Row, fleet_pb2.WorkerReport]) -> None:
        row, report = what
        row.hear(report, self._clock())
        self._changed(row)
        self._drain()

    def _sweep(self, _: None) -> None:
        now_s = self._clock()
        health.eject({row: row.record for row in self._rows}, now_s)
        self._drain()
        self._schedule(now_s + SWEEP_S, self._sweep, None)

    def _asks(self, what: tuple[Row, float]) -> None:
        """A probe is at the worker."""
        row, sent_s = what
        worker = self._workers[row]
        self._schedule(self._clock() + worker.machine.away_s, self._answers, (row, sent_s, worker.load()))

    def _answers(self, what: tuple[Row, float, generation_pb2.Load]) -> None:
        """The answer to a probe counts like a load that comes with a message."""
        row, sent_s, load = what
        now_s = self._clock()
        row.load(load, sent_s, now_s)
        self.policy.probed(row, load.running + load.queued, row.latency_s or 0.0, now_s)
        self._changed(row)
        self._drain()

    # the queue

    def arrives(self, job: Job) -> None:
        self._wait(job)
        self._drain()

    def cancels(self, job: Job) -> None:
        """Its client gave up."""
        entry = self._entries.pop(job, None)
        if entry is None:
            self._leave(self._visits[job])
        else:
            del self._waiting[entry]
            self._order.remove(entry)
        self._drain()

    def _wait(self, job: Job) -> None:
        work = job.work
        self._sequence += 1
        entry = Entry(
            self._sequence,
            work.arrived_s,
            deadline_s=work.arrived_s + DEADLINE_S,
            predicted_s=0.1,
            tokens=work.guess_tokens,
        )
        self._waiting[entry] = job
        self._entries[job] = entry
        self._order.push(entry, self._clock())

    def _candidates(self, now_s: float) -> list[Row]:
        if self._healthy:
            return self._rows
        return [row for row in self._rows if row.breaker.allows(now_s) and now_s >= row.record.ejected_until_s]

    def _drain(self) -> None:
        """Send what may be sent."""
        now_s = self._clock()
        while self._waiting:
            candidates = self._candidates(now_s)
            entry = self._order.peek(now_s)
            if entry is None or not candidates:
                return
            job = self._waiting[entry]
            row = self.policy.pick(candidates, job.ask, self._rng, now_s)
            for asked in self.policy.probes(candidates, self._rng):
                self.probes += 1
                self._schedule(now_s + self._workers[asked].machine.away_s, self._asks, (asked, now_s))
            if row is None:
                return
            self._order.pop(now_s)
            del self._waiting[entry], self._entries[job]
            self._send(job, row)

    # one attempt

    def _send(self, job: Job, row: Row) -> None:
        job.attempts += 1
        worker = self._workers[row]
        lease = Lease(row, job.ask, self.policy, self._changed, self._clock)
        visit = self._visits[job] = _Sent(job, worker, lease, self, self._schedule)
        self._schedule(self._clock() + worker.machine.away_s, self._reaches, visit)

    def _reaches(self, visit: _Sent) -> None:
        """It is at the worker."""
        worker, now_s = visit.worker, self._clock()
        if worker.fails:
            worker.fail()
            self._schedule(now_s + worker.machine.away_s, self._failed, visit)
            return
        worker.take(visit, now_s)
        self._schedule(now_s + worker.machine.away_s, self._started, (visit, worker.load()))

    def _started(self, what: tuple[_Sent, generation_pb2.Load]) -> None:
        visit, load = what
        if visit.left:
            return
        visit.lease.started(load)
        row, job = visit.lease.row, visit.job
        keeps = self.policy.keeps(row, load.queued)
        self._changed(row)
        if load.queued and not keeps and job.taken_back < MAX_TAKEN_BACK:
            job.taken_back += 1
            job.attempts -= 1
            self._leave(visit)
            self._wait(job)
        self._drain()

    def _failed(self, visit: _Sent) -> None:
        if visit.left:
            return
        job = visit.job
        visit.lease.row.broke(self._clock())
        self._end(visit)
        if job.attempts < MAX_ATTEMPTS:
            self._wait(job)
        else:
            job.failed = True
        self._drain()

    def first_token(self, visit: _Sent) -> None:
        if not visit.left:
            visit.lease.token()
            visit.job.ttft_s = self._clock() - visit.work.arrived_s

    def finished(self, what: tuple[_Sent, generation_pb2.Load]) -> None:
        visit, load = what
        if visit.left:
            return
        visit.job.total_s = self._clock() - visit.work.arrived_s
        visit.lease.finished(visit.work.answer_tokens, load)
        self._end(visit)
        self._drain()

    def _leave(self, visit: _Sent) -> None:
        """Cancel it at the worker."""
        self._end(visit)
        self._schedule(self._clock() + visit.worker.machine.away_s, visit.worker.cancel, visit)

    def _end(self, visit: _Sent) -> None:
        visit.left = True
        visit.lease.release()
        del self._visits[visit.job]


class _Sent(Visit):
    """A request that this router sent. What happens to it is known to the router a way later."""

    __slots__ = ("_router", "_schedule", "job", "lease", "left", "worker")

    def __init__(self, job: Job, worker: Worker, lease: Lease, router: Router, schedule: Schedule) -> None:
        super().__init__(job.work)
        self.job = job
        self.worker = worker
        self.lease = lease
        self.left = False  # the router does not wait for it any more
        self._router = router
        self._schedule = schedule

    def first_token(self, now_s: float) -> None:
        self._schedule(now_s + self.worker.machine.away_s, self._router.first_token, self)

    def finished(self, now_s: float) -> None:
        self._schedule(now_s + self.worker.machine.away_s, self._router.finished, (self, self.worker.load()))
