"""Requests, routers and workers in simulated time: a heap of events. Routers drive the real policies, rows, leases and orders."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

from benchmarks.routing_sim.scenario import DEADLINE_S, Scenario, Work
from benchmarks.routing_sim.worker import Worker
from ladr.config import RouterSettings
from ladr.routing import health
from ladr.routing.lease import Lease
from ladr.routing.orders import ORDERS, Entry
from ladr.routing.policies import create
from ladr.routing.policy import Ask
from ladr.routing.row import Row

MAX_ATTEMPTS = 4
SWEEP_S = 0.2
BUS_S = 0.001  # what a report takes to a router
PROBE_S = 0.0005  # what the answer to a probe takes, both ways


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request went. `ttft_s` is from its arrival to its first token at the client; infinite: it failed."""

    arrived_s: float
    ttft_s: float
    total_s: float
    cancelled: bool


class Job:
    """A request on its way: what the worker keeps of it is reset with each attempt."""

    __slots__ = (
        "ask",
        "attempts",
        "began",
        "done",
        "entry",
        "first_s",
        "generating",
        "lease",
        "over",
        "router",
        "simulation",
        "staged",
        "taken_s",
        "total_s",
        "work",
        "worker",
    )

    def __init__(self, simulation: Simulation, work: Work, ask: Ask) -> None:
        self.simulation = simulation
        self.work = work
        self.ask = ask
        self.router: Router | None = None
        self.entry: Entry | None = None
        self.worker: Worker | None = None
        self.lease: Lease | None = None
        self.attempts = 0
        self.done = False  # nothing more happens to it
        self.first_s = self.total_s = math.inf
        self.attempt()

    def settle(self) -> None:
        """It is over, one way or another."""
        self.done = True
        self.simulation.settled()

    def attempt(self) -> None:
        """A new try, at whichever worker."""
        self.began = self.generating = self.over = self.staged = False
        self.taken_s = 0.0

    def clock(self) -> float:
        return self.simulation.now_s

    def at(self, at_s: float, what: Callable[[Job, float], None]) -> None:
        self.simulation.schedule(at_s, lambda job: what(job, job.clock()), self)

    def first_token(self, now_s: float) -> None:
        assert self.worker is not None
        away_s = self.worker.machine.away_s
        if self.router:
            self.simulation.schedule(now_s + away_s, self.router.first_token, (self, self.lease))
        elif self.first_s == math.inf:
            self.first_s = now_s + away_s

    def finished(self, now_s: float) -> None:
        assert self.worker is not None
        away_s = self.worker.machine.away_s
        if self.router:
            self.simulation.schedule(now_s + away_s, self.router.finished, (self, self.lease, self.worker.load()))
        else:
            self.total_s = now_s + away_s
            self.settle()
            self.simulation.central_freed(self.worker)


class Simulation:
    """One run. `policy` None: the limit, one queue that sees all and has no delay in what it knows."""

    def __init__(self, scenario: Scenario, settings: RouterSettings | None, seed: int) -> None:
        self.scenario = scenario
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0
        self.workers = [
            Worker(f"worker-{number:02}", machine, self.schedule) for number, machine in enumerate(scenario.fleet)
        ]
        self._central: list[Job] = []
        self._central_at = 0
        self.jobs: list[Job] = []
        self._open = 0
        expected = scenario.expected_answer
        self._works = iter(scenario.works(seed))
        self._expected = expected
        self.routers = [] if settings is None else [Router(self, settings, seed, n) for n in range(scenario.routers)]
        for trouble in scenario.troubles:
            self.schedule(trouble.from_s, self._trouble, (trouble.worker, trouble.slower, trouble.fails))
            if trouble.until_s < math.inf:
                self.schedule(trouble.until_s, self._trouble, (trouble.worker, 1.0, False))

    def schedule(self, at_s: float, what: Callable[[Any], None], argument: Any) -> None:
        self._count += 1
        heappush(self._events, (at_s, self._count, what, argument))

    def run(self) -> list[Outcome]:
        """All requests, by arrival."""
        self._arrives(None)
        events = self._events
        end_s = self.scenario.duration_s
        while events:
            self.now_s, _, what, argument = heappop(events)
            what(argument)
            if not self._open and self.now_s > end_s:
                break
        return [
            Outcome(job.work.arrived_s, job.first_s - job.work.arrived_s, job.total_s - job.work.arrived_s, job.total_s < 0)
            for job in self.jobs
        ]

    def _arrives(self, job: Job | None) -> None:
        work = next(self._works, None)
        if work is not None:
            ask = Ask(work.prompt_tokens, self._expected, work.session, work.prefix)
            self.schedule(work.arrived_s, self._arrives, Job(self, work, ask))
        if job is None:
            return
        self.jobs.append(job)
        self._open += 1
        if job.work.gives_up_s < math.inf:
            self.schedule(self.now_s + job.work.gives_up_s, self._gives_up, job)
        if self.routers:
            self.routers[job.work.router].arrives(job)
        else:
            self._central.append(job)
            self._central_drain()

    def _gives_up(self, job: Job) -> None:
        if job.done or job.first_s < math.inf:
            return
        job.settle()
        job.total_s = -math.inf
        if self.routers:
            self.routers[job.work.router].cancels(job)
        elif job.worker is not None:
            job.worker.cancel(job, self.now_s)
            self._central_drain()

    def settled(self) -> None:
        self._open -= 1

    def _trouble(self, what: tuple[int, float, bool]) -> None:
        number, slower, fails = what
        self.workers[number].fails = fails
        self.workers[number].slow_down(slower, self.now_s)

    def central_freed(self, worker: Worker) -> None:
        self._central_drain()

    def _central_drain(self) -> None:
        while self._central_at < len(self._central):
            job = self._central[self._central_at]
            if job.done:
                self._central_at += 1
                continue
            free = [
                worker
                for worker in self.workers
                if worker.busy < worker.machine.slots
                and not worker.fails
                and not (
                    worker.machine.kv_tokens
                    and worker.busy
                    and worker._kv_used + job.work.prompt_tokens + job.work.answer_tokens > worker.machine.kv_tokens
                )
            ]
            if not free:
                return
            self._central_at += 1
            worker = min(free, key=lambda w: (w.step_s(w.running + 1) / w.machine.tokens_per_step, w.name))
            job.worker = worker
            worker.take(job, self.now_s)


class Router:
    """What services/router does with a request, without gRPC: the queue, the lease, retries, what messages tell."""

    def __init__(self, simulation: Simulation, settings: RouterSettings, seed: int, number: int) -> None:
        self._simulation = simulation
        self._policy = create(settings)
        self._rng = Random(f"router {number} {seed}")
        self._order = ORDERS[simulation.scenario.order]()
        self._jobs: dict[Entry, Job] = {}
        self._theta = settings.theta
        self._report_s = simulation.scenario.report_s
        self._rows: list[Row] = []
        self._by_row: dict[Row, Worker] = {}
        self._steady = not any(trouble.fails for trouble in simulation.scenario.troubles)
        self._stopped = False
        self._probing = 0
        self._sequence = 0
        for worker in simulation.workers:
            row = Row(worker.report(0.0), self._theta)
            row.hear(row.report, 0.0)
            self._rows.append(row)
            self._by_row[row] = worker
            self._changed(row)
            simulation.schedule(self._rng.uniform(0, self._report_s), self._reports, (row, worker))
        if not self._steady:
            simulation.schedule(SWEEP_S, self._sweep, None)

    def _clock(self) -> float:
        return self._simulation.now_s

    def _changed(self, row: Row) -> None:
        self._policy.changed(row, self._rng)

    def _reports(self, what: tuple[Row, Worker]) -> None:
        row, worker = what
        now_s = self._clock()
        self._simulation.schedule(now_s + BUS_S, self._hears, (row, worker.report(now_s)))
        self._simulation.schedule(now_s + self._report_s, self._reports, what)

    def _hears(self, what: tuple[Row, Any]) -> None:
        row, report = what
        row.hear(report, self._clock())
        self._changed(row)
        self._drain()

    def _sweep(self, _: None) -> None:
        now_s = self._clock()
        health.eject({row: row.record for row in self._rows}, now_s)
        self._drain()
        self._simulation.schedule(now_s + SWEEP_S, self._sweep, None)

    def _candidates(self, now_s: float) -> list[Row]:
        if self._steady:
            return self._rows
        return [row for row in self._rows if row.breaker.allows(now_s) and now_s >= row.record.ejected_until_s]

    def arrives(self, job: Job) -> None:
        self._wait(job)
        self._drain()

    def _wait(self, job: Job) -> None:
        now_s, work = self._clock(), job.work
        self._sequence += 1
        entry = job.entry = Entry(
            self._sequence,
            work.arrived_s,
            work.arrived_s + DEADLINE_S,
            tokens=work.prompt_tokens / 200 + work.guess_tokens,
            predicted_s=0.1,
        )
        self._jobs[entry] = job
        self._order.push(entry, now_s)

    def _drain(self) -> None:
        """Send what may be sent."""
        now_s = self._clock()
        while self._jobs:
            candidates = self._candidates(now_s)
            entry = self._order.peek(now_s)
            if entry is None or not candidates:
                return
            job = self._jobs[entry]
            row = self._policy.pick(candidates, job.ask, self._rng, now_s)
            if row is None:
                return
            self._order.pop(now_s)
            del self._jobs[entry]
            self._send(job, row)
            for probed in self._policy.probes(candidates, self._rng):
                self._probing += 1
                self._simulation.schedule(now_s + PROBE_S, self._answers, probed)

    def _answers(self, row: Row) -> None:
        self._probing -= 1
        worker = self._by_row[row]
        self._policy.probed(row, worker.busy, row.latency_s or 0.0, self._clock())

    def _send(self, job: Job, row: Row) -> None:
        job.attempt()
        job.router = self
        job.attempts += 1
        worker = job.worker = self._by_row[row]
        job.lease = Lease(row, job.ask, self._policy, self._changed, self._clock)
        self._simulation.schedule(self._clock() + worker.machine.away_s, self._reaches, (job, job.lease))

    def _reaches(self, what: tuple[Job, Lease]) -> None:
        """The request is at the worker."""
        job, lease = what
        worker, now_s = job.worker, self._clock()
        assert worker is not None
        if job.over or job.lease is not lease:
            return
        away_s = worker.machine.away_s
        if worker.fails:
            worker.fail()
            self._simulation.schedule(now_s + away_s, self._failed, what)
            return
        worker.take(job, now_s)
        self._simulation.schedule(now_s + away_s, self._started, (lease, worker.load()))

    def _started(self, what: tuple[Lease, Any]) -> None:
        lease, load = what
        if lease._held:
            lease.started(load)

    def _failed(self, what: tuple[Job, Lease]) -> None:
        job, lease = what
        if job.done:
            return
        lease.row.broke(self._clock())
        lease.release()
        if job.attempts < MAX_ATTEMPTS:
            self._wait(job)
        else:
            job.settle()
        self._drain()

    def first_token(self, what: tuple[Job, Lease]) -> None:
        job, lease = what
        if job.done:
            return
        lease.token()
        job.first_s = self._clock()

    def finished(self, what: tuple[Job, Lease, Any]) -> None:
        job, lease, load = what
        if job.done:
            return
        job.settle()
        job.total_s = self._clock()
        lease.finished(load)
        lease.release()
        self._drain()

    def cancels(self, job: Job) -> None:
        """Its client gave up before the first token."""
        now_s = self._clock()
        if job.entry in self._jobs:
            assert job.entry is not None
            del self._jobs[job.entry]
            self._order.remove(job.entry)
            return
        assert job.lease is not None and job.worker is not None
        worker = job.worker
        job.lease.release()
        self._simulation.schedule(now_s + worker.machine.away_s, lambda job: worker.cancel(job, job.clock()), job)
        self._drain()
