"""When a roll-out goes on and when it goes back: what holds always, and how often it errs when it is looked at each second."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.distiller.rollout.core import (
    Advance,
    Decision,
    RollBack,
    Rules,
    Standing,
    Stay,
    Succeed,
    counted,
    decide,
    entered,
)
from services.distiller.rollout.counts import NOTHING, Counts, Times, gained

RULES = Rules((0.05, 0.5, 1.0), stage_s=60, stage_requests=50, timeout_s=3600, error_margin=0.02, latency_ratio=1.5)
LONG = 10_000.0  # seconds, after which no stage has any to go


def times(count: int, mean_s: float, deviation: float = 0.0) -> Times:
    """So many samples with that geometric mean, whose logarithms deviate so far."""
    mean = math.log(mean_s)
    return Times(count, count * mean, count * (mean * mean + deviation * deviation))


def did(succeeded: int, failed: int = 0, first_s: float = 0.1, token_s: float = 0.01, deviation: float = 0.0) -> Counts:
    return Counts(succeeded, failed, times(succeeded, first_s, deviation), times(succeeded, token_s, deviation))


COUNTS = st.builds(
    did,
    st.integers(0, 300),
    st.integers(0, 60),
    st.sampled_from([0.1, 0.14, 0.16, 0.3]),
    st.sampled_from([0.01, 0.02]),
    st.sampled_from([0.0, 0.5]),
)
STANDINGS = st.builds(Standing, st.integers(0, 2), st.just(0.0), COUNTS, COUNTS, COUNTS)


def base_of(at: Standing) -> Counts:
    enough = at.others.ended >= RULES.stage_requests
    return at.others if enough else at.others + at.earlier


@given(STANDINGS, st.floats(0, 2 * RULES.timeout_s))
def test_a_stage_is_passed_only_with_what_was_asked_for(at: Standing, lasted_s: float) -> None:
    decision, base = decide(RULES, at, lasted_s), base_of(at)
    if not isinstance(decision, Advance | Succeed):
        return
    assert lasted_s >= RULES.stage_s and at.student.succeeded >= RULES.stage_requests
    assert at.stage == 2 or base.ended >= RULES.stage_requests
    assert at.student.failure_ratio <= base.failure_ratio + RULES.error_margin
    if base.ended >= RULES.stage_requests:
        for its, theirs in [
            (at.student.first_tokens.mean_s, base.first_tokens.mean_s),
            (at.student.output_tokens.mean_s, base.output_tokens.mean_s),
        ]:
            assert its is None or theirs is None or its <= theirs * RULES.latency_ratio * (1 + 1e-9)
    assert isinstance(decision, Succeed) == (at.stage == 2)
    assert not isinstance(decision, Advance) or decision.stage == at.stage + 1


@given(STANDINGS)
def test_before_its_time_is_over_a_student_goes_back_only_if_it_did_worse(at: Standing) -> None:
    base = base_of(at)
    if isinstance(decide(RULES, at, 0.0), RollBack):
        fails = at.student.failure_ratio > base.failure_ratio + RULES.error_margin
        paces = [(at.student.first_tokens, base.first_tokens), (at.student.output_tokens, base.output_tokens)]
        slow = any(
            its.count and theirs.count and its.total / its.count > theirs.total / theirs.count + math.log(1.5)
            for its, theirs in paces
        )
        assert fails or slow


@given(STANDINGS, st.integers(1, 50), st.integers(1, 500))
def test_who_goes_back_for_failures_does_so_with_more_of_them_too_and_when_the_others_fail_less(
    at: Standing, more: int, better: int
) -> None:
    at = replace(at, student=Counts(at.student.succeeded, at.student.failed), others=did(60) + at.others)
    if isinstance(decide(RULES, at, 0.0), RollBack):
        assert isinstance(decide(RULES, counted(at, Counts(failed=more), NOTHING), 0.0), RollBack)
        assert isinstance(decide(RULES, counted(at, NOTHING, Counts(better)), 0.0), RollBack)


@given(STANDINGS, st.floats(0, RULES.timeout_s))
def test_after_its_time_out_no_stage_stays(at: Standing, over_s: float) -> None:
    assert not isinstance(decide(RULES, at, RULES.timeout_s + over_s), Stay)


# How often it errs: requests come by chance, 2 a second, and each second there is a look.


def readings(
    rng: np.random.Generator, a_second: float, fails: float, first_s: float, seconds: int
) -> Iterator[tuple[bool, Counts]]:
    """What one side has done, a second after the other, and whether that is news. Times are log-normal."""
    ended = rng.poisson(a_second, seconds).cumsum()
    failed = (rng.random(ended[-1] + 1) < fails).cumsum()
    logs = rng.normal(math.log(first_s), 0.5, ended[-1] + 1)
    totals, squares = (np.concatenate(([0.0], sums.cumsum())) for sums in (logs, logs * logs))
    before = 0
    for now in ended.tolist():
        failures = int(failed[now - 1]) if now else 0
        right = now - failures
        yield now > before, Counts(right, failures, Times(right, float(totals[right]), float(squares[right])))
        before = now


def run(
    rng: np.random.Generator, share: float, fails: tuple[float, float], slower: float = 1.0, seconds: int = 300
) -> Decision:
    """Look each second of a stage that cannot be passed in its time; gives how it ended."""
    rules = replace(RULES, stages=(share, 1.0), stage_s=LONG, timeout_s=LONG)
    sides = [
        readings(rng, 2 * share, fails[0], 0.1 * slower, seconds),
        readings(rng, 2 * (1 - share), fails[1], 0.1, seconds),
    ]
    last: Decision = Stay("")
    for second, ((news, student), (others_news, others)) in enumerate(zip(*sides, strict=True)):
        if news or others_news:
            last = decide(rules, Standing(0, 0.0, student, others), float(second))
        if isinstance(last, RollBack):
            break
    return last


def back(runs: int, share: float, fails: tuple[float, float], slower: float = 1.0, seconds: int = 300) -> float:
    """Share of the runs that went back."""
    rng = np.random.default_rng(19)
    return Counter(type(run(rng, share, fails, slower, seconds)) for _ in range(runs))[RollBack] / runs


@pytest.mark.parametrize(
    ("fails", "slower"),
    [((0.05, 0.05), 1.0), ((0.1, 0.1), 1.0), ((0.07, 0.05), 1.0), ((0.0, 0.0), 1.5)],
    ids=["both fail 5 %", "both fail 10 %", "the margin more", "the ratio slower"],
)
def test_who_is_no_worse_than_allowed_hardly_ever_goes_back(fails: tuple[float, float], slower: float) -> None:
    assert back(100, 0.5, fails, slower) <= 0.02


def test_who_is_no_worse_than_allowed_hardly_ever_goes_back_where_the_others_have_few_requests() -> None:
    assert back(50, 0.9, (0.07, 0.05), 1.5) <= 0.02


@pytest.mark.parametrize(
    ("fails", "slower"),
    [((0.3, 0.01), 1.0), ((0.01, 0.01), 3.0), ((1.0, 0.01), 1.0)],
    ids=["30 % fail", "three times slower", "all fail"],
)
def test_who_is_much_worse_goes_back_nearly_always(fails: tuple[float, float], slower: float) -> None:
    assert back(100, 0.5, fails, slower) >= 0.98


def whole(rng: np.random.Generator, fails: float) -> Decision:
    """A roll-out of a student that is like the others, looked at each second; gives how it ended."""
    rules, standing, second = replace(RULES, stage_s=300.0, timeout_s=LONG), Standing(0, 0.0), 0

    def came(a_second: float) -> Counts:
        ended = int(rng.poisson(a_second))
        failed = int(rng.binomial(ended, fails))
        logs = rng.normal(0, 0.5, ended - failed)
        return Counts(ended - failed, failed, Times(len(logs), float(logs.sum()), float((logs * logs).sum())))

    while True:
        second += 1
        share = rules.stages[standing.stage]
        standing = counted(standing, came(2 * share), came(2 * (1 - share)))
        match decide(rules, standing, second):
            case Stay():
                continue
            case Advance(stage):
                standing = entered(standing, stage, second)
            case ended:
                return ended


def test_a_student_that_is_like_the_others_comes_through_all_stages() -> None:
    rng = np.random.default_rng(23)
    assert Counter(type(whole(rng, 0.05)) for _ in range(15)) == {Succeed: 15}


# Single cases.


def at(student: Counts, others: Counts, earlier: Counts = NOTHING) -> Standing:
    return Standing(0, 0, student, others, earlier)


def test_two_failures_of_two_prove_nothing_and_three_among_many_good_ones_of_others_do() -> None:
    assert isinstance(decide(RULES, at(did(1, 1), did(1000)), 1), Stay)
    assert isinstance(decide(RULES, at(did(0, 2), did(1000)), 1), Stay)
    gone = decide(RULES, at(did(0, 3), did(1000)), 1)
    assert gone == RollBack("stage 1 of 3 (5 %): 100 % of its 3 requests failed, 0 % of theirs")


@pytest.mark.parametrize(("share", "requests"), [(0.05, 4), (0.2, 6), (0.5, 12)])
def test_a_student_that_fails_everything_goes_back_within_a_dozen_requests(share: float, requests: int) -> None:
    gone = (
        failed
        for failed in range(1, 100)
        if isinstance(decide(RULES, at(Counts(0, failed), did(round(failed * (1 - share) / share))), 1), RollBack)
    )
    assert next(gone) == requests


def test_a_stage_waits_for_the_others_requests() -> None:
    few = replace(RULES, stages=(0.9, 1.0))
    for student, others in [(did(100, first_s=0.3), did(1, first_s=0.15)), (did(45, 5), did(3))]:
        assert isinstance(decide(few, at(student, others), 100), Stay)
    equal = decide(few, at(did(500), did(49)), 100)
    assert equal == Stay("stage 1 of 2 (90 %): the others have had 49 of 50 requests to compare with")
    assert isinstance(decide(few, at(did(500), did(50)), 100), Advance)
    assert isinstance(decide(few, at(did(500), did(10), earlier=did(40)), 100), Advance)


def test_where_the_others_get_nothing_and_had_nothing_the_student_is_judged_alone() -> None:
    alone = replace(RULES, stages=(1.0,))
    assert isinstance(decide(alone, at(Counts(0, 3), NOTHING), 1), RollBack)
    assert isinstance(decide(alone, at(Counts(60, 1), NOTHING), 100), Succeed)
    stragglers = did(3, first_s=0.01)  # that came before the stage began and ended in it
    assert isinstance(decide(alone, at(did(60), stragglers), 100), Succeed)


def test_one_cold_start_ends_no_rollout_and_holds_none_up() -> None:
    cold = Counts(1, 0, times(1, 30.0), times(1, 0.01))
    student = did(49, first_s=0.1, deviation=0.3) + cold  # in the mean, not the geometric one, 0.7 s
    assert isinstance(decide(RULES, at(student, did(950, deviation=0.3)), 100), Advance)


@pytest.mark.parametrize(
    ("slow", "reason"),
    [
        ({"first_s": 0.3}, "its first token takes 300 ms, theirs 100 ms"),
        ({"token_s": 0.03}, "each token after it takes 30 ms, theirs 10 ms"),
    ],
)
def test_a_student_that_is_slower_to_begin_or_to_write_goes_back(slow: dict[str, Any], reason: str) -> None:
    others = did(950, deviation=0.5)
    assert decide(RULES, at(did(50, deviation=0.5, **slow), others), 1) == RollBack(f"stage 1 of 3 (5 %): {reason}")
    assert isinstance(decide(RULES, at(did(49, deviation=0.5, **slow), others), 1), Stay)


def test_a_student_that_seems_slower_but_may_not_be_waits() -> None:
    others = did(950, deviation=0.5)
    doubtful = decide(RULES, at(did(50, first_s=0.16, deviation=0.5), others), 100)
    assert isinstance(doubtful, Stay) and "160 ms, theirs 100 ms, too few requests to tell" in doubtful.reason
    assert isinstance(decide(RULES, at(did(50, first_s=0.14, deviation=0.5), others), 100), Advance)
    assert isinstance(decide(RULES, at(did(5000, first_s=0.16, deviation=0.5), did(95000, deviation=0.5)), 1), RollBack)


def test_a_stage_with_doubtful_failures_waits_for_more_requests() -> None:
    doubtful = decide(RULES, at(did(50, 2), did(1000)), 100)
    assert isinstance(doubtful, Stay)
    assert "too few requests to tell" in doubtful.reason
    assert isinstance(decide(RULES, at(did(120, 2), did(1000)), 100), Advance)


def test_who_fails_as_the_others_do_goes_on() -> None:
    assert isinstance(decide(RULES, at(did(50, 20), did(500, 200)), 100), Advance)


def test_the_last_stage_is_compared_with_what_the_others_did_before() -> None:
    second = entered(counted(Standing(0, 0), did(60), did(900, first_s=0.2)), 1, 100)
    assert second == Standing(1, 100, earlier=did(900, first_s=0.2))
    third = entered(counted(second, did(60), did(60, first_s=0.2)), 2, 200)
    assert third.earlier.ended == 960
    slow = decide(RULES, counted(third, did(60, first_s=0.31), NOTHING), 300)
    assert slow == RollBack("stage 3 of 3 (100 %): its first token takes 310 ms, theirs 200 ms")
    assert isinstance(decide(RULES, counted(third, did(60, first_s=0.29), NOTHING), 300), Succeed)


def test_a_stage_in_which_the_others_had_enough_is_compared_with_that_alone() -> None:
    slower_by_now = Standing(1, 0, did(60, first_s=0.2), did(60, first_s=0.2), earlier=did(900, first_s=0.1))
    assert isinstance(decide(RULES, slower_by_now, 100), Advance)
    assert isinstance(decide(RULES, replace(slower_by_now, others=did(10, first_s=0.2)), 100), RollBack)


def test_a_clock_that_goes_back_makes_a_stage_longer_and_no_more() -> None:
    assert isinstance(decide(RULES, Standing(0, 1000, did(60), did(60)), 900), Stay)


# Counters.


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
        assert min(new.succeeded, new.failed, new.first_tokens.count, new.output_tokens.count) >= 0
        summed, before = summed + new, counter
    all_of_them = sum(succeeded for succeeded, _ in steps), sum(failed for _, failed in steps)
    assert summed.succeeded <= all_of_them[0]
    assert summed.failed <= all_of_them[1]
    if not restarts & set(range(len(steps))):
        assert (summed.succeeded, summed.failed) == all_of_them
        assert summed.first_tokens.total == pytest.approx(counter.first_tokens.total)


def test_the_first_reading_counts_for_nothing() -> None:
    assert gained(None, did(10, 1)) == NOTHING
