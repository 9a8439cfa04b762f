"""When a roll-out goes on and when it goes back, against a second, dumb telling of the rules."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.distiller.rollout.core import (
    NOTHING,
    Advance,
    Counts,
    Decision,
    RollBack,
    Rules,
    Standing,
    Stay,
    Succeed,
    chance,
    counted,
    decide,
    entered,
    gained,
)

RULES = Rules((0.05, 0.5, 1.0), stage_s=60, stage_requests=50, timeout_s=3600, error_margin=0.02, latency_ratio=1.5)


def did(succeeded: int, failed: int = 0, first_s: float = 0.1) -> Counts:
    return Counts(succeeded, failed, succeeded, succeeded * first_s)


COUNTS = st.builds(did, st.integers(0, 60), st.integers(0, 12), st.sampled_from([0.1, 0.14, 0.16, 1.0]))


def dumb_chance(failed: int, ended: int, ratio: Fraction) -> Fraction:
    return sum(
        (comb(ended, k) * ratio**k * (1 - ratio) ** (ended - k) for k in range(failed, ended + 1)), start=Fraction(0)
    )


def dumb(rules: Rules, at: Standing, now_s: float) -> type[Decision]:
    """The rules as sentences, in exact numbers."""
    base = at.others
    if base.succeeded + base.failed < max(1, rules.stage_requests):
        base = base + at.earlier
    ended, theirs = at.student.succeeded + at.student.failed, base.succeeded + base.failed
    limit = (Fraction(base.failed, theirs) if theirs else Fraction(0)) + Fraction(str(rules.error_margin))
    beyond = ended > 0 and Fraction(at.student.failed, ended) > limit
    sure = beyond and at.student.failed >= 3 and dumb_chance(at.student.failed, ended, limit) <= Fraction(1, 100)
    if sure:
        return RollBack
    both = at.student.first_tokens and base.first_tokens
    slow = bool(both) and (
        at.student.first_tokens_s / at.student.first_tokens
        > rules.latency_ratio * (base.first_tokens_s / base.first_tokens)
    )
    enough = at.student.succeeded >= rules.stage_requests
    long_enough = now_s - at.began_s >= rules.stage_s
    if slow and at.student.first_tokens >= max(1, rules.stage_requests):
        return RollBack
    if enough and long_enough and not beyond:
        if slow:
            return RollBack
        return Succeed if at.stage == len(rules.stages) - 1 else Advance
    return RollBack if now_s - at.began_s >= rules.timeout_s else Stay


@given(
    st.integers(0, 2),
    COUNTS,
    COUNTS,
    COUNTS,
    st.integers(0, 60),
    st.sampled_from([0.0, 0.02, 0.25]),
    st.sampled_from([0.0, 59.0, 60.0, 3599.0, 3600.0]),
)
def test_the_decision_is_that_of_the_rules_told_again(
    stage: int, student: Counts, others: Counts, earlier: Counts, requests: int, margin: float, lasted_s: float
) -> None:
    rules = Rules(RULES.stages, 60, requests, 3600, margin, 1.5)
    at = Standing(stage, 1000.0, student, others, earlier)
    decision = decide(rules, at, 1000.0 + lasted_s)
    assert type(decision) is dumb(rules, at, 1000.0 + lasted_s), decision
    if isinstance(decision, Advance):
        assert decision.stage == stage + 1


@given(st.integers(0, 40), st.integers(0, 40), st.fractions(0, 1, max_denominator=50))
def test_the_chance_is_the_sum_of_the_binomial_tail(failed: int, more: int, ratio: Fraction) -> None:
    assert chance(failed, failed + more, float(ratio)) == pytest.approx(
        float(dumb_chance(failed, failed + more, ratio)), rel=1e-9, abs=1e-300
    )


def test_the_chance_of_very_many_requests_is_found() -> None:
    assert chance(20_100, 1_000_000, 0.02) == pytest.approx(0.24, abs=0.01)
    assert chance(2_010_000, 100_000_000, 0.02) < 1e-9


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=30), st.sets(st.integers(0, 29)))
def test_counters_that_begin_anew_never_count_twice_and_never_below_zero(
    steps: list[tuple[int, int]], restarts: set[int]
) -> None:
    counter, before, summed = NOTHING, NOTHING, NOTHING
    for number, (succeeded, failed) in enumerate(steps):
        if number in restarts:
            counter = NOTHING
        counter = counter + did(succeeded, failed)
        new = gained(before, counter)
        assert min(new.succeeded, new.failed, new.first_tokens, new.first_tokens_s) >= 0
        summed, before = summed + new, counter
    all_of_them = sum(succeeded for succeeded, _ in steps), sum(failed for _, failed in steps)
    assert summed.succeeded <= all_of_them[0]
    assert summed.failed <= all_of_them[1]
    if not restarts & set(range(len(steps))):
        assert (summed.succeeded, summed.failed) == all_of_them


def test_the_first_reading_counts_for_nothing() -> None:
    assert gained(None, did(10, 1)) == NOTHING


def test_one_failure_of_two_proves_nothing() -> None:
    assert isinstance(decide(RULES, Standing(0, 0, did(1, 1), did(1000)), 1), Stay)
    assert isinstance(decide(RULES, Standing(0, 0, did(0, 2), did(1000)), 1), Stay)
    back = decide(RULES, Standing(0, 0, did(0, 3), did(1000)), 1)
    assert back == RollBack("stage 1 of 3 (5 %): 100 % of its 3 requests failed, 0 % of theirs")


def test_a_stage_with_doubtful_failures_waits_for_more_requests() -> None:
    doubtful = decide(RULES, Standing(0, 0, did(50, 2), did(1000)), 100)
    assert isinstance(doubtful, Stay)
    assert "too few requests to tell" in doubtful.reason
    assert isinstance(decide(RULES, Standing(0, 0, did(120, 2), did(1000)), 100), Advance)


def test_who_fails_as_the_others_do_goes_on() -> None:
    assert isinstance(decide(RULES, Standing(0, 0, did(50, 20), did(500, 200)), 100), Advance)


def test_the_last_stage_is_compared_with_what_the_others_did_before() -> None:
    second = entered(RULES, counted(Standing(0, 0), did(60), did(900, first_s=0.1)), 1, 100)
    assert second == Standing(1, 100, earlier=did(900, first_s=0.1))
    third = entered(RULES, counted(second, did(60), did(60, first_s=0.2)), 2, 200)
    assert third.earlier == did(60, first_s=0.2)
    slow = decide(RULES, counted(third, did(60, first_s=0.31), NOTHING), 300)
    assert slow == RollBack("stage 3 of 3 (100 %): its first token takes 310 ms, theirs 200 ms")
    assert isinstance(decide(RULES, counted(third, did(60, first_s=0.29), NOTHING), 300), Succeed)


def test_a_clock_that_goes_back_makes_a_stage_longer_and_no_more() -> None:
    assert isinstance(decide(RULES, Standing(0, 1000, did(60), did(60)), 900), Stay)
