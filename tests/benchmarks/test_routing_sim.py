"""The simulator: its worker against one that steps token by token, the routers' books, and what its command line gives."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.routing_sim.measure import run
from benchmarks.routing_sim.scenario import EXTRA, FLEET, SCENARIOS, Machine, Scenario, Trouble, Work, random_fleets
from benchmarks.routing_sim.simulation import Clock, Job, Simulation
from benchmarks.routing_sim.worker import Visit, Worker
from ladr.config import RouterSettings
from tests.processes import ROOT

BY_NAME = {scenario.name: scenario for scenario in (*SCENARIOS, *EXTRA)}
LADR = RouterSettings()


class Told(Visit):
    __slots__ = ("end_s", "first_s")

    def first_token(self, now_s: float) -> None:
        self.first_s = now_s

    def finished(self, now_s: float) -> None:
        self.end_s = now_s


def stepwise(machine: Machine, requests: list[tuple[float, int, int]]) -> list[tuple[float, float]]:
    """First token and end of each request (arrival, prompt, answer), by going through time in small pieces."""
    piece_s = 1e-4
    needs = [
        (prompt / machine.read_tokens + 1, prompt / machine.read_tokens + answer) for _, prompt, answer in requests
    ]
    done = [0.0] * len(requests)  # steps
    found = [[math.nan, math.nan] for _ in requests]
    running: list[int] = []
    now_s = 0.0
    while any(math.isnan(end_s) for _, end_s in found):
        running = [n for n in running if math.isnan(found[n][1])]
        for n, (arrived_s, _, _) in enumerate(requests):
            if arrived_s <= now_s and n not in running and not done[n] and len(running) < machine.slots:
                running.append(n)
        now_s += piece_s
        batch = len(running)
        if not batch:
            continue
        step_s = machine.step_s * (1 + machine.growth * (batch - 1) / max(machine.slots - 1, 1))
        for n in running:
            done[n] += piece_s / step_s
            for which in (0, 1):
                if done[n] >= needs[n][which] and math.isnan(found[n][which]):
                    found[n][which] = now_s
    return [(first_s, end_s) for first_s, end_s in found]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 0.2), st.integers(1, 600), st.integers(2, 30)), min_size=1, max_size=7),
    st.integers(1, 4),
    st.floats(0, 2),
)
def test_a_worker_ends_requests_when_one_that_goes_through_time_would(
    requests: list[tuple[float, int, int]], slots: int, growth: float
) -> None:
    requests = sorted(requests)
    machine = Machine(slots=slots, growth=growth)
    clock = Clock()
    worker = Worker("a", machine, clock, clock.schedule)
    visits = [Told(Work(arrived_s, prompt, answer, 0, 0.0)) for arrived_s, prompt, answer in requests]
    for visit in visits:
        clock.schedule(visit.work.arrived_s, lambda visit: worker.take(visit, clock()), visit)
    while worker.busy or not all(visit.over for visit in visits):
        clock.step()
    for visit, (first_s, end_s) in zip(visits, stepwise(machine, requests), strict=True):
        assert visit.first_s == pytest.approx(first_s, abs=4e-3)
        assert visit.end_s == pytest.approx(end_s, abs=4e-3)


def short(name: str, **changes: Any) -> Scenario:
    return replace(BY_NAME[name], duration_s=20.0, pulse_s=5.0, **changes)


@pytest.mark.parametrize("name", BY_NAME)
def test_when_all_is_over_no_request_is_counted_anywhere(name: str) -> None:
    simulation = Simulation(short(name), LADR, seed=1)
    jobs = simulation.run()
    assert all(job.done for job in jobs)
    for router in simulation.routers:
        assert not router._waiting and not router._visits
        for row in router._rows:
            assert (row.in_flight, len(row.leases)) == (0, 0)
            assert row.own_prompt_tokens == 0
            assert row.own_tokens == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("settings_", [None, LADR])
def test_every_request_gets_its_first_token_and_then_its_last(settings_: RouterSettings | None) -> None:
    jobs = Simulation(short("routers-4-pulse"), settings_, seed=1).run()
    assert len(jobs) > 800
    for job in jobs:
        assert 2 * 0.00025 < job.ttft_s <= job.total_s < math.inf


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    def firsts(seed: int) -> list[float]:
        return [job.ttft_s for job in Simulation(short("routers-2"), LADR, seed).run()]

    assert firsts(1) == firsts(1) != firsts(2)


def test_the_limit_begins_requests_in_their_turn() -> None:
    simulation = Simulation(short("pulse"), None, seed=1)
    starts: list[tuple[float, Job]] = []
    for worker in simulation.workers:
        take = worker.take

        def taken(visit: Any, now_s: float, take: Any = take) -> None:
            starts.append((now_s, visit._job))
            take(visit, now_s)

        worker.take = taken  # type: ignore[method-assign]
    jobs = simulation.run()
    assert [job for _, job in starts] == jobs


def test_a_worker_that_fails_all_gets_little_and_nobody_is_told() -> None:
    trouble = Trouble(worker=2, from_s=5.0, until_s=15.0, fails=True)
    jobs = Simulation(short("black-hole", troubles=(trouble,)), LADR, seed=1).run()
    assert not any(job.failed for job in jobs)
    assert sum(job.attempts for job in jobs) < 1.05 * len(jobs)


def test_a_client_that_gives_up_frees_its_place() -> None:
    figures = run(short("cancellations", gives_up=1.0, load=2.0), LADR, [1])
    assert figures.failed == 0
    assert figures.p99_s < 20


def test_random_fleets_are_the_same_for_the_same_seed() -> None:
    first, again, other = (list(random_fleets(5, seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_ladr_stays_near_the_limit_where_round_robin_does_not() -> None:
    scenario = Scenario("both", FLEET, 0.8, routers=2, duration_s=60.0)
    limit, ours, theirs = (run(scenario, s, [1, 2]) for s in (None, LADR, RouterSettings(policy="round-robin")))
    assert ours.p99_s < 1.3 * limit.p99_s
    assert theirs.p99_s > 10 * limit.p99_s


def sim(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.routing_sim", "-o", "json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_summary_has_the_mean_and_the_worst_at_the_top() -> None:
    one = sim("--policy", "ladr", "--summary", "--quick", "--scenario", "load-50")
    assert one["policy"] == "ladr"
    assert one["p99_vs_central_geomean"] == pytest.approx(one["p99_vs_central_worst"])
    assert "scenarios" not in one


def test_random_fleets_and_settings_can_be_given() -> None:
    found = sim("--policy", "ladr", "--quick", "--fleets", "1", "--seed", "5", "--set", "hold=2", "--order", "shortest")
    assert found["scenarios"][0]["name"] == "fleet-5-0"
    assert found["p99_vs_central_worst"] > 0
