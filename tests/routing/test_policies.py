"""Each policy by what it promises, on plain values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ladr.config import RouterSettings
from ladr.routing import policies
from ladr.routing.budget import RESERVE, RetryBudget
from ladr.routing.policies.ladr_weighted import LadrWeighted
from ladr.routing.policies.least_request import LeastRequest
from ladr.routing.policies.round_robin import RoundRobin
from ladr.routing.policy import Ask


@dataclass
class Worker:
    worker_id: str
    in_flight: int = 0
    queue: float = 0.0
    latency_s: float | None = None
    pace_s: float | None = None
    slots: int = 8


def test_round_robin_takes_each_in_turn() -> None:
    fleet = [Worker(name) for name in "cab"]
    policy = RoundRobin()
    assert "".join(policy.pick(fleet, Ask(), Random(0), 0.0).worker_id for _ in range(7)) == "abcabca"


def test_round_robin_skips_nobody_when_the_fleet_changes() -> None:
    policy = RoundRobin()
    assert policy.pick([Worker("a"), Worker("b"), Worker("d")], Ask(), Random(0), 0.0).worker_id == "a"
    assert policy.pick([Worker("b"), Worker("d")], Ask(), Random(0), 0.0).worker_id == "b"
    assert policy.pick([Worker("a"), Worker("c"), Worker("d")], Ask(), Random(0), 0.0).worker_id == "c"


@given(st.lists(st.integers(0, 20), min_size=1, max_size=20), st.integers(0, 99))
def test_least_request_takes_one_with_the_fewest(counts: list[int], seed: int) -> None:
    fleet = [Worker(str(i), in_flight=n) for i, n in enumerate(counts)]
    assert LeastRequest().pick(fleet, Ask(), Random(seed), 0.0).in_flight == min(counts)


def test_least_request_draws_among_equals() -> None:
    fleet = [Worker(name) for name in "abcd"]
    rng = Random(1)
    drawn = Counter(LeastRequest().pick(fleet, Ask(), rng, 0.0).worker_id for _ in range(4000))
    assert all(800 < n < 1200 for n in drawn.values())


def test_ladr_weighted_draws_by_score() -> None:
    fleet = [Worker("fast", latency_s=0.1, queue=0), Worker("slow", latency_s=0.4, queue=3)]
    rng = Random(2)
    drawn = Counter(LadrWeighted(0.5, 0.5).pick(fleet, Ask(), rng, 0.0).worker_id for _ in range(10_000))
    # scores 0.5/1 + 0.5/1 = 1 and 0.5/4 + 0.5/4 = 0.25: four to one
    assert abs(drawn["fast"] / 10_000 - 0.8) < 0.02


def test_ladr_weighted_tries_a_worker_without_a_latency_yet() -> None:
    fleet = [Worker("known", latency_s=0.1), Worker("new")]
    rng = Random(3)
    drawn = Counter(LadrWeighted(0.5, 0.5).pick(fleet, Ask(), rng, 0.0).worker_id for _ in range(1000))
    assert 400 < drawn["new"] < 600


def test_the_settings_name_the_policy() -> None:
    made = {
        name: type(policies.create(RouterSettings(policy=name)))
        for name in ("round-robin", "least-request", "ladr-weighted")
    }
    assert made == {"round-robin": RoundRobin, "least-request": LeastRequest, "ladr-weighted": LadrWeighted}


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=400), st.floats(0, 1))
def test_the_retry_budget_is_a_share_of_ten_seconds_and_a_reserve(
    steps: list[tuple[float, bool]], share: float
) -> None:
    budget = RetryBudget(share)
    now_s = 100.0
    history: list[tuple[int, bool]] = []
    for after_s, retry in steps:
        now_s += after_s
        second = int(now_s)
        recent = [entry for entry in history if entry[0] > second - 10]
        requests = sum(not was_retry for _, was_retry in recent)
        retries = sum(was_retry for _, was_retry in recent)
        if retry:
            allowed = budget.retry(now_s)
            assert allowed == (retries + 1 <= share * requests + RESERVE)
            if allowed:
                history.append((second, True))
        else:
            budget.request(now_s)
            history.append((second, False))


def test_the_retry_budget_runs_out() -> None:
    budget = RetryBudget(0.2)
    for _ in range(100):
        budget.request(5.0)
    assert sum(budget.retry(5.5) for _ in range(1000)) == RESERVE + 20
    assert budget.retry(16.0)


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 50), st.floats(1e-3, 10)), min_size=1, max_size=9))
def test_weights_are_how_often_each_is_picked(workers: list[tuple[int, float, float]]) -> None:
    fleet = [Worker(str(i), in_flight=n, queue=q, latency_s=s) for i, (n, q, s) in enumerate(workers)]
    rng = Random(4)
    for policy in (RoundRobin(), LeastRequest(), LadrWeighted(0.5, 0.5)):
        weights = policy.weights(fleet)
        assert abs(sum(weights) - 1) < 1e-9
        drawn = Counter(policy.pick(fleet, Ask(), rng, 0.0).worker_id for _ in range(900))
        for worker, weight in zip(fleet, weights, strict=True):
            assert abs(drawn[worker.worker_id] / 900 - weight) < 0.1
