"""Simulated time, the requests in it, and the limit that routers are measured by."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from benchmarks.routing_sim.router import Router
from benchmarks.routing_sim.scenario import Scenario, Work
from benchmarks.routing_sim.worker import Visit, Worker
from ladr.config import RouterSettings
from ladr.routing.policy import Ask


@dataclass(eq=False, slots=True)
class Job:
    """A request. Times are from its arrival at the router to the message at the router; infinite: there was none."""

    work: Work
    ask: Ask
    ttft_s: float = math.inf
    total_s: float = math.inf
    attempts: int = 0
    taken_back: int = 0
    failed: bool = False
    cancelled: bool = False

    @property
    def done(self) -> bool:
        return self.failed or self.cancelled or self.total_s < math.inf


class Clock:
    """What happens next: a heap of events."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0

    def __call__(self) -> float:
        return self.now_s

    def schedule(self, at_s: float, what: Callable[[Any], None], argument: Any) -> None:
        self._count += 1
        heappush(self._events, (at_s, self._count, what, argument))

    def step(self) -> None:
        self.now_s, _, what, argument = heappop(self._events)
        what(argument)


class Simulation:
    """One run. Without `settings` of a router: the limit, one queue that sees all at once."""

    def __init__(self, scenario: Scenario, settings: RouterSettings | None, seed: int) -> None:
        self._clock = Clock()
        self._expected_tokens = scenario.expected_answer
        self._works = deque(scenario.works(seed))
        self.jobs: list[Job] = []
        self.workers = [
            Worker(f"worker-{number:02}", machine, self._clock, self._clock.schedule)
            for number, machine in enumerate(scenario.fleet)
        ]
        self.routers: list[Router] = []
        self._ways: list[Router] | list[_Limit] = [_Limit(self.workers, self._clock)]
        if settings:
            self._ways = self.routers = [
                Router(self.workers, settings, scenario, self._clock, self._clock.schedule, f"{seed} {number}")
                for number in range(scenario.routers)
            ]
        for trouble in scenario.troubles:
            self._clock.schedule(trouble.from_s, self._trouble, (trouble.worker, trouble.slower, trouble.fails))
            if trouble.until_s < math.inf:
                self._clock.schedule(trouble.until_s, self._trouble, (trouble.worker, 1.0, False))

    def run(self) -> list[Job]:
        """All requests, by arrival, when each is done."""
        self._next()
        while self._works:
            self._clock.step()
        open_jobs = deque(self.jobs)
        while open_jobs:
            if open_jobs[-1].done:
                open_jobs.pop()
            else:
                self._clock.step()
        return self.jobs

    def _next(self) -> None:
        self._clock.schedule(self._works[0].arrived_s, self._arrives, None)

    def _arrives(self, _: None) -> None:
        work = self._works.popleft()
        if self._works:
            self._next()
        job = Job(work, Ask(work.prompt_tokens, self._expected_tokens, work.session, work.prefix, work.arrived_s))
        self.jobs.append(job)
        way = self._ways[work.router if self.routers else 0]
        way.arrives(job)
        if work.gives_up_s < math.inf:
            self._clock.schedule(work.arrived_s + work.gives_up_s, self._gives_up, (way, job))

    def _gives_up(self, what: tuple[Router | _Limit, Job]) -> None:
        way, job = what
        if job.ttft_s == math.inf and not job.done:
            job.cancelled = True
            way.cancels(job)

    def _trouble(self, what: tuple[int, float, bool]) -> None:
        number, slower, fails = what
        self.workers[number].fails = fails
        self.workers[number].slow_down(slower, self._clock())


class _Limit:
    """One queue for all, first come, first served. It knows the true state of each worker and gives each free slot at once."""

    def __init__(self, workers: list[Worker], clock: Callable[[], float]) -> None:
        self._workers = workers
        self._clock = clock
        self._waiting: deque[Job] = deque()
        self._visits: dict[Job, _Placed] = {}

    def arrives(self, job: Job) -> None:
        self._waiting.append(job)
        self.drain()

    def cancels(self, job: Job) -> None:
        visit = self._visits.pop(job, None)
        if visit:
            visit.worker.cancel(visit)
        self.drain()

    def ended(self, job: Job) -> None:
        del self._visits[job]
        self.drain()

    def drain(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            if not job.done:
                free = [worker for worker in self._workers if not worker.fails and worker.fits(job.work)]
                if not free:
                    return
                worker = min(free, key=lambda w: (w.token_s(w.running + 1), w.name))
                visit = self._visits[job] = _Placed(job, worker, self, self._clock)
                worker.take(visit, self._clock())
            self._waiting.popleft()


class _Placed(Visit):
    """A request that the limit put somewhere. The network takes it both ways as it does with a router."""

    __slots__ = ("_clock", "_job", "_limit", "worker")

    def __init__(self, job: Job, worker: Worker, limit: _Limit, clock: Callable[[], float]) -> None:
        super().__init__(job.work)
        self.worker = worker
        self._job = job
        self._limit = limit
        self._clock = clock

    def first_token(self, now_s: float) -> None:
        self._job.ttft_s = now_s + 2 * self.worker.machine.away_s - self._job.work.arrived_s

    def finished(self, now_s: float) -> None:
        self._job.total_s = now_s + 2 * self.worker.machine.away_s - self._job.work.arrived_s
        self._limit.ended(self._job)
