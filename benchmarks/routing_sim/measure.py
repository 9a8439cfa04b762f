"""Runs, and what is said of them: tails against the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pool

from benchmarks.report import percentile
from benchmarks.routing_sim.scenario import DEADLINE_S, Scenario
from benchmarks.routing_sim.simulation import Simulation
from ladr.config import RouterSettings

FAILED_S = 600.0  # what a request that failed counts as


@dataclass(frozen=True)
class Figures:
    """Of the requests of all seeds together, but for those whose client gave up. Seconds to the first token."""

    requests: int
    mean_s: float
    p50_s: float
    p99_s: float
    goodput: float  # share with the first token within 2 s
    total_mean_s: float  # to the last token
    failed: int
    taken_back: int  # requests that were taken back from a worker, once or more
    attempts: float  # a request, those taken back not counted


def run(scenario: Scenario, settings: RouterSettings | None, seeds: Sequence[int]) -> Figures:
    """Simulate it with each seed. `settings` None: the limit."""
    jobs = [job for seed in seeds for job in Simulation(scenario, settings, seed).run() if not job.cancelled]
    firsts = [min(job.ttft_s, FAILED_S) for job in jobs]
    return Figures(
        requests=len(jobs),
        mean_s=sum(firsts) / len(firsts),
        p50_s=percentile(firsts, 0.5),
        p99_s=percentile(firsts, 0.99),
        goodput=sum(first <= DEADLINE_S for first in firsts) / len(firsts),
        total_mean_s=sum(min(job.total_s, FAILED_S) for job in jobs) / len(jobs),
        failed=sum(job.failed for job in jobs),
        taken_back=sum(job.taken_back > 0 for job in jobs),
        attempts=sum(job.attempts for job in jobs) / len(jobs),
    )


def run_all(
    scenarios: Sequence[Scenario], policies: Sequence[RouterSettings | None], seeds: Sequence[int], jobs: int = 1
) -> list[list[Figures]]:
    """For each scenario the figures of each policy; in so many processes at once."""
    tasks = [(scenario, settings, seeds) for scenario in scenarios for settings in policies]
    if jobs > 1:
        with Pool(jobs) as pool:
            found = pool.starmap(run, tasks, chunksize=1)
    else:
        found = [run(*task) for task in tasks]
    wide = len(policies)
    return [found[at : at + wide] for at in range(0, len(found), wide)]


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
