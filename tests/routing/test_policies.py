"""Each policy by what it promises, on plain values."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladr.config import RouterSettings
from ladr.routing import policies
from ladr.routing.budget import RESERVE, RetryBudget
from ladr.routing.policies.grpc_wrr import GrpcWrr, weight
from ladr.routing.policies.ladr_weighted import LadrWeighted
from ladr.routing.policies.least_request import LeastRequest
from ladr.routing.policies.lmetric import LMetric
from ladr.routing.policies.peak_ewma import PeakEwma
from ladr.routing.policies.power_of_two import PowerOfTwo
from ladr.routing.policies.prequal import Prequal, Probe, choose, worst
from ladr.routing.policies.random_draw import RandomDraw
from ladr.routing.policies.round_robin import RoundRobin
from ladr.routing.policies.sed import ShortestExpectedDelay
from ladr.routing.policies.smg import Smg
from ladr.routing.policy import Ask, Policy
from tests.routing.workers import Worker

ASK = Ask(prompt_tokens=100, answer_tokens=100.0)


def picked(policy: Policy, fleet: list[Worker], rng: Random, now_s: float = 0.0) -> str:
    chosen = policy.pick(fleet, ASK, rng, now_s)
    assert chosen is not None
    return chosen.worker_id


def shares(policy: Policy, fleet: list[Worker], times: int) -> dict[str, float]:
    rng = Random(1)
    drawn = Counter(picked(policy, fleet, rng) for _ in range(times))
    return {worker.worker_id: drawn[worker.worker_id] / times for worker in fleet}


def test_round_robin_takes_each_in_turn() -> None:
    fleet = [Worker(name) for name in "cab"]
    policy = RoundRobin()
    assert "".join(picked(policy, fleet, Random(0)) for _ in range(7)) == "abcabca"


def test_round_robin_skips_nobody_when_the_fleet_changes() -> None:
    policy = RoundRobin()
    assert picked(policy, [Worker("a"), Worker("b"), Worker("d")], Random(0)) == "a"
    assert picked(policy, [Worker("b"), Worker("d")], Random(0)) == "b"
    assert picked(policy, [Worker("a"), Worker("c"), Worker("d")], Random(0)) == "c"


@given(st.lists(st.integers(0, 20), min_size=1, max_size=20), st.integers(0, 99))
def test_least_request_takes_one_with_the_fewest(counts: list[int], seed: int) -> None:
    fleet = [Worker(str(i), in_flight=n) for i, n in enumerate(counts)]
    assert fleet[int(picked(LeastRequest(), fleet, Random(seed)))].in_flight == min(counts)


def test_least_request_draws_among_equals() -> None:
    assert all(0.2 < share < 0.3 for share in shares(LeastRequest(), [Worker(name) for name in "abcd"], 4000).values())


def test_ladr_weighted_draws_by_score() -> None:
    fleet = [Worker("fast", latency_s=0.1, queue=0), Worker("slow", latency_s=0.4, queue=3)]
    # scores 0.5/1 + 0.5/1 = 1 and 0.5/4 + 0.5/4 = 0.25: four to one
    assert abs(shares(LadrWeighted(0.5, 0.5), fleet, 10_000)["fast"] - 0.8) < 0.02


def test_ladr_weighted_tries_a_worker_without_a_latency_yet() -> None:
    fleet = [Worker("known", latency_s=0.1), Worker("new")]
    assert 0.4 < shares(LadrWeighted(0.5, 0.5), fleet, 1000)["new"] < 0.6


def test_random_knows_no_difference() -> None:
    fleet = [Worker("idle"), Worker("full", in_flight=99)]
    assert 0.45 < shares(RandomDraw(), fleet, 4000)["full"] < 0.55


def test_power_of_two_never_takes_the_fullest_of_three() -> None:
    found = shares(PowerOfTwo(), [Worker("a"), Worker("b", in_flight=1), Worker("c", in_flight=2)], 3000)
    assert found["c"] == 0
    assert abs(found["a"] - 2 / 3) < 0.03  # it is in two of three pairs


def test_peak_ewma_rises_at_once_and_wears_down_slowly() -> None:
    policy, worker = PeakEwma(tau_s=10), Worker("a")
    policy.first_token(worker, 0.1, 0.0)
    policy.first_token(worker, 1.0, 1.0)
    assert policy.cost(worker, 1.0) == 1.0
    policy.first_token(worker, 0.1, 11.0)
    assert math.isclose(policy.cost(worker, 11.0), math.exp(-1) * 1.0 + (1 - math.exp(-1)) * 0.1)
    worker.in_flight = 4
    assert math.isclose(policy.cost(worker, 21.0), math.exp(-1) * 5 * (math.exp(-1) + (1 - math.exp(-1)) * 0.1))


def test_peak_ewma_tries_a_new_worker_with_one_request_and_then_waits_for_it() -> None:
    policy, known, new = PeakEwma(), Worker("known"), Worker("new")
    policy.first_token(known, 0.1, 0.0)
    assert picked(policy, [known, new], Random(0)) == "new"
    new.in_flight = 1
    assert picked(policy, [known, new], Random(0)) == "known"


PROBES = st.lists(st.tuples(st.integers(0, 9), st.floats(0.01, 9)), min_size=1, max_size=16)


@settings(max_examples=1000)
@given(PROBES)
def test_prequal_takes_the_fastest_of_the_cold_and_drops_the_slowest_or_hottest(found: list[tuple[int, float]]) -> None:
    pool = [Probe(Worker(str(i)), n, latency_s, 0.0, 1.0) for i, (n, latency_s) in enumerate(found)]
    limit = sorted(n for n, _ in found)[min(int(0.6 * len(found)), len(found) - 1)]
    cold = [probe for probe in pool if probe.requests <= limit]
    hot = [probe for probe in pool if probe.requests > limit]
    assert choose(pool).latency_s == min(probe.latency_s for probe in cold)  # at least the median is cold
    if hot:
        assert worst(pool).requests == max(probe.requests for probe in hot)
    else:
        assert worst(pool).latency_s == max(probe.latency_s for probe in cold)


def test_prequal_forgets_probes_after_a_second_and_then_draws() -> None:
    fleet = [Worker(name) for name in "abcd"]
    policy, rng = Prequal(), Random(0)
    for worker, latency_s in zip(fleet, (0.4, 0.1, 0.3, 0.2), strict=True):
        policy.probed(worker, 0, latency_s, 0.0)
    assert picked(policy, fleet, rng, 0.9) == "b"
    assert len({picked(policy, fleet, rng, 2.0) for _ in range(50)}) == 4


def test_prequal_asks_three_a_request_and_never_holds_more_than_sixteen() -> None:
    fleet = [Worker(str(i)) for i in range(100)]
    policy, rng = Prequal(), Random(0)
    asked = 0
    for step in range(50):
        picked(policy, fleet, rng, step / 1000)
        for worker in policy.probes(fleet, rng):
            asked += 1
            policy.probed(worker, 1, 0.1, step / 1000)
    assert asked == 150
    assert len(policy._pool) <= 16


def test_prequal_does_not_send_to_a_worker_that_is_no_candidate_any_more() -> None:
    policy, fleet = Prequal(), [Worker(name) for name in "abc"]
    for worker in fleet:
        policy.probed(worker, 0, 0.1, 0.0)
    assert picked(policy, fleet[1:], Random(0), 0.1) in "bc"


@given(st.floats(0.1, 100), st.floats(0, 50), st.floats(0.01, 2))
def test_the_weight_of_grpc_wrr_is_requests_by_load(finished: float, failed: float, utilization: float) -> None:
    qps = finished + failed
    assert math.isclose(weight(finished, failed, utilization), qps / (utilization + failed / qps))
    assert weight(0, 0, utilization) == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.5, 20), min_size=2, max_size=8), st.integers(0, 99))
def test_grpc_wrr_takes_each_as_often_as_its_weight_says_and_evenly(rates: list[float], seed: int) -> None:
    """However it is interleaved, in n picks each comes n · share times, give or take one for each worker."""
    fleet = [Worker(str(i), finished_per_s=rate, reported=4) for i, rate in enumerate(rates)]
    policy, rng = GrpcWrr(), Random(seed)
    picked(policy, fleet, rng, 0.0)  # its weights count after the blackout
    drawn = Counter(picked(policy, fleet, rng, 20.0) for _ in range(300))
    for worker, share in zip(fleet, policy.weights(fleet), strict=True):
        assert abs(drawn[worker.worker_id] - 300 * share) <= len(fleet)


def test_grpc_wrr_is_round_robin_through_the_blackout_and_after_the_expiry() -> None:
    fleet = [Worker("slow", finished_per_s=1, reported=4), Worker("fast", finished_per_s=9, reported=4)]
    policy, rng = GrpcWrr(), Random(0)
    assert Counter(picked(policy, fleet, rng, 0.0) for _ in range(100)) == {"slow": 50, "fast": 50}
    assert Counter(picked(policy, fleet, rng, 11.0) for _ in range(100))["fast"] in (89, 90, 91)
    for worker in fleet:
        worker.finished_per_s = 0
    assert Counter(picked(policy, fleet, rng, 100.0) for _ in range(100))["fast"] in (89, 90, 91)
    assert Counter(picked(policy, fleet, rng, 200.0) for _ in range(100)) == {"slow": 50, "fast": 50}


def test_sed_weighs_outstanding_tokens_by_what_a_worker_generates() -> None:
    slow = Worker("slow", slots=1, pace_s=0.1, in_flight=1, depth=1, own_tokens=100)
    fast = Worker("fast", slots=1, pace_s=0.01, in_flight=5, depth=5, own_tokens=1000)
    # (100 + 200) / 10 = 30 s against (1000 + 200) / 100 = 12 s
    assert picked(ShortestExpectedDelay(), [slow, fast], Random(0)) == "fast"
    fast.depth = 30  # 25 of others, like its own: (6000 + 200) / 100 = 62 s
    assert picked(ShortestExpectedDelay(), [slow, fast], Random(0)) == "slow"


def test_lmetric_multiplies_the_prompts_to_read_by_the_batch() -> None:
    many_short = Worker("many", depth=9, queued_tokens=0)  # 100 · 10
    few_long = Worker("few", depth=1, queued_tokens=500)  # 600 · 2
    assert picked(LMetric(), [many_short, few_long], Random(0)) == "many"
    many_short.depth = 12
    assert picked(LMetric(), [many_short, few_long], Random(0)) == "few"


def test_smg_adds_the_memory_in_use_to_the_time_of_the_queue() -> None:
    queued = Worker("queued", tokens_per_s=1000, queued_tokens=200, sent_tokens=100, kv_used=0.0)  # 0.3 s
    full = Worker("full", tokens_per_s=1000, kv_used=0.75)  # 0.15 · 3 = 0.45 s
    assert picked(Smg(), [queued, full], Random(0)) == "queued"
    queued.sent_tokens = 300
    assert picked(Smg(), [queued, full], Random(0)) == "full"
    full.kv_used = 1.0
    assert picked(Smg(), [queued, full], Random(0)) == "queued"


@pytest.mark.parametrize("name", policies.POLICIES)
def test_a_policy_picks_from_what_it_is_given_and_its_weights_sum_to_one(name: str) -> None:
    policy, rng = policies.create(RouterSettings.model_validate({"policy": name})), Random(0)
    fleet = [Worker(str(i), slots=4) for i in range(6)]
    for step in range(300):
        some = rng.sample(fleet, rng.randint(1, 6))
        chosen = policy.pick(some, ASK, rng, step / 10)
        assert chosen is None or chosen in some
        assert abs(sum(policy.weights(some)) - 1) < 1e-9
        assert all(share >= 0 for share in policy.weights(some))
        worker = rng.choice(fleet)
        worker.in_flight, worker.depth = rng.randint(0, 3), rng.randint(3, 5)
        worker.pace_s, worker.latency_s, worker.finished_per_s = rng.random(), rng.random(), rng.random()
        policy.changed(worker, rng)
        policy.sent(worker, ASK, step / 10)
        policy.keeps(worker, rng.randint(0, 2))
        policy.first_token(worker, rng.random(), step / 10)
        policy.ended(worker, rng.random(), rng.random() < 0.5, step / 10)
        for asked in policy.probes(some, rng):
            policy.probed(asked, asked.depth, 0.1, step / 10)


def test_the_settings_name_the_policy() -> None:
    for name in policies.POLICIES:
        assert policies.create(RouterSettings.model_validate({"policy": name}))
    assert set(policies.POLICIES) == set(RouterSettings.model_fields["policy"].annotation.__args__)


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 50), st.floats(1e-3, 10)), min_size=1, max_size=9))
def test_weights_are_how_often_each_is_picked(workers: list[tuple[int, float, float]]) -> None:
    fleet = [Worker(str(i), in_flight=n, queue=q, latency_s=s) for i, (n, q, s) in enumerate(workers)]
    for policy in (RoundRobin(), LeastRequest(), LadrWeighted(0.5, 0.5), RandomDraw(), PowerOfTwo()):
        weights = policy.weights(fleet)
        assert abs(sum(weights) - 1) < 1e-9
        for share, expected in zip(shares(policy, fleet, 900).values(), weights, strict=True):
            assert abs(share - expected) < 0.1


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
