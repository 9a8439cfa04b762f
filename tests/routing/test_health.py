"""Breaker and ejection, with a clock turned by hand."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ladr.routing.health import BACKOFF_S, LEAST_FAILURES, Breaker, Record, eject
from ladr.routing.window import WINDOW_S


def test_one_failure_is_tolerated_and_the_second_in_a_row_opens() -> None:
    breaker = Breaker()
    breaker.failed(0.0)
    assert breaker.allows(0.0)
    breaker.succeeded()
    breaker.failed(0.1)
    assert breaker.allows(0.1)
    breaker.failed(0.2)
    assert not breaker.allows(0.2)


def test_half_open_lets_one_request_through_and_that_one_decides() -> None:
    breaker = Breaker()
    breaker.failed(0.0, tolerated=0)
    assert not breaker.allows(BACKOFF_S[0] - 0.01)
    assert breaker.allows(BACKOFF_S[0])
    assert breaker.sent()
    assert not breaker.allows(BACKOFF_S[0])  # one at a time
    breaker.failed(BACKOFF_S[0])
    breaker.settled()
    assert not breaker.allows(BACKOFF_S[0] * 2)  # twice as long now
    assert breaker.allows(BACKOFF_S[0] * 3)
    breaker.sent()
    breaker.succeeded()
    breaker.settled()
    assert breaker.allows(BACKOFF_S[0] * 3)
    assert not breaker.half_open


def test_a_probe_that_ends_without_a_verdict_leaves_room_for_the_next() -> None:
    breaker = Breaker()
    breaker.failed(0.0, tolerated=0)
    assert breaker.allows(1.0)
    breaker.sent()
    breaker.settled()  # its client went away
    assert breaker.allows(1.0)


@given(st.lists(st.tuples(st.sampled_from(["fail", "ok", "none"]), st.floats(0, 10)), max_size=50))
def test_whatever_happens_a_breaker_lets_something_through_in_the_end(steps: list[tuple[str, float]]) -> None:
    breaker = Breaker()
    now_s = 0.0
    for kind, after_s in steps:
        now_s += after_s
        if not breaker.allows(now_s):
            continue
        breaker.sent()
        if kind == "fail":
            breaker.failed(now_s)
        elif kind == "ok":
            breaker.succeeded()
        breaker.settled()
    assert breaker.allows(now_s + BACKOFF_S[1])


def fleet(*shares: float, requests: int = 100, now_s: float = 0.0) -> dict[int, Record]:
    records = {}
    for name, share in enumerate(shares):
        records[name] = Record()
        for n in range(requests):
            records[name].add(n < share * requests, now_s)
    return records


def test_the_one_that_fails_far_more_than_the_others_is_ejected_and_comes_back() -> None:
    records = fleet(0.0, 0.02, 0.6, 0.0)
    assert eject(records, 0.0) == {2}
    first_s = records[2].ejected_until_s
    assert 0 < first_s <= 5
    for n in range(100):
        records[2].add(n < 60, first_s)
    assert eject(records, first_s) == {2}
    assert records[2].ejected_until_s - first_s > first_s  # for longer


def test_when_all_fail_alike_nobody_is_ejected() -> None:
    assert eject(fleet(0.6, 0.6, 0.6, 0.6), 0.0) == set()


def test_a_few_failures_say_nothing() -> None:
    assert eject(fleet(0.0, 1.0, 0.0, requests=LEAST_FAILURES - 1), 0.0) == set()


def test_old_failures_are_forgotten() -> None:
    records = fleet(0.0, 0.6, 0.0)
    assert eject(records, WINDOW_S + 1) == set()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(0, 99))
def test_never_more_than_half_are_out_at_once(shares: list[float], seed: int) -> None:
    rng = Random(seed)
    records = fleet(*shares)
    for step in range(6):
        now_s = step * 1.0
        eject(records, now_s)
        assert sum(now_s < record.ejected_until_s for record in records.values()) <= len(records) / 2
        for name, record in records.items():
            for _ in range(20):
                record.add(rng.random() < shares[name], now_s)
