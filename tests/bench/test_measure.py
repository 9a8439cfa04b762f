"""What is made of outcomes: percentiles against a sorted list, tokens lost and repeated against a plain count."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladr.bench.measure import Latencies, Measurement, Slo
from ladr.bench.run import highest
from ladr.bench.scenarios import SCENARIOS, Workers, up_fleet
from ladr.bench.witness import Outcome, Witness
from ladr.config import Settings, UpSettings
from tests.client.fake_router import delta, finished, started


@given(st.lists(st.floats(1e-5, 3000), min_size=1, max_size=200), st.sampled_from([0.0, 50.0, 90.0, 99.0, 100.0]))
def test_a_percentile_is_the_sorted_lists_to_three_digits(values: list[float], percent: float) -> None:
    latencies = Latencies()
    for value in values:
        latencies.record(value)
    rank = max(1, math.ceil(percent / 100 * len(values)))
    assert latencies.percentile(percent) == pytest.approx(sorted(values)[rank - 1], rel=2e-3, abs=2e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-3, 60), max_size=50), st.lists(st.floats(1e-3, 60), max_size=50))
def test_what_is_added_up_is_as_if_recorded_in_one(first: list[float], second: list[float]) -> None:
    parts = [Latencies(), Latencies(), Latencies()]
    for latencies, values in zip(parts, (first, second, first + second), strict=True):
        for value in values:
            latencies.record(value)
    parts[0].add(parts[1])
    assert list(parts[0].distribution()) == list(parts[2].distribution())
    assert not first + second or list(parts[2].distribution())[-1][1] == 1.0


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["keep", "drop", "repeat"])), max_size=30))
def test_lost_and_repeated_tokens_are_counted_however_a_stream_is_broken(pieces: list[tuple[int, str]]) -> None:
    witness, offset, lost, repeated = Witness(), 0, 0, 0
    witness.take(started().SerializeToString(), 0.0)
    for count, fate in pieces:
        message = delta("x", offset, count).SerializeToString()
        for _ in range({"keep": 1, "drop": 0, "repeat": 2}[fate]):
            witness.take(message, 1.0)
        lost += count * (fate == "drop")
        repeated += count * (fate == "repeat")
        offset += count
    witness.take(finished(offset).SerializeToString(), 2.0)
    outcome = witness.outcome(at_s=0.0, due_s=0.0, sent_s=0.0, end_s=2.0)
    assert (outcome.lost, outcome.repeated, outcome.reason) == (lost, repeated, "")


def test_times_of_an_answer_count_from_the_intended_time() -> None:
    witness = Witness()
    witness.take(started().SerializeToString(), 10.1)
    for position in range(5):
        witness.take(delta("x", position).SerializeToString(), 10.2 + position / 10)
    witness.take(finished(5).SerializeToString(), 10.7)
    outcome = witness.outcome(at_s=3.0, due_s=9.0, sent_s=9.5, end_s=10.7)
    assert (outcome.at_s, outcome.late_s) == (3.0, 0.5)
    assert (outcome.ttft_s, outcome.tpot_s, outcome.e2e_s) == pytest.approx((1.2, 0.1, 1.7))


@pytest.mark.parametrize(
    "messages",
    [
        [started(), delta("x", 0)],
        [started(), finished(0), delta("x", 0)],
        [finished(0), started()],
        [finished(0), finished(0)],
    ],
)
def test_a_stream_without_its_one_end_is_broken(messages: list[object]) -> None:
    witness = Witness()
    for message in messages:
        witness.take(message.SerializeToString(), 0.0)  # type: ignore[attr-defined]
    assert witness.outcome(0.0, 0.0, 0.0, 0.0).reason == "BROKEN_STREAM"


def test_what_is_no_message_breaks_the_stream_too() -> None:
    witness = Witness()
    witness.take(b"\x12\xff", 0.0)
    witness.take(finished(0).SerializeToString(), 0.0)
    assert witness.outcome(0.0, 0.0, 0.0, 0.0).reason == "BROKEN_STREAM"


good = {"ttft_s": 0.5, "e2e_s": 2.0, "tokens": 10}


@pytest.mark.parametrize(
    ("outcome", "met"),
    [
        (Outcome(0.0, **good), True),
        (Outcome(0.0, **good | {"ttft_s": 1.1}), False),
        (Outcome(0.0, **good | {"e2e_s": 3.1}), False),
        (Outcome(0.0, **good, lost=1), False),
        (Outcome(0.0, **good, repeated=1), False),
        (Outcome(0.0, reason="OVERLOADED"), False),
    ],
)
def test_an_answer_is_good_if_it_is_whole_and_in_time(outcome: Outcome, met: bool) -> None:
    assert Slo(1.0, 3.0).met(outcome) is met


def test_failures_count_as_offered_and_what_is_before_the_window_does_not() -> None:
    measurement = Measurement(Slo(1.0), begin_s=5.0, end_s=25.0)
    for outcome in (
        Outcome(4.0, **good),  # warm-up, and its answer ends within the window
        Outcome(1.0, **good),
        Outcome(6.0, **good),
        Outcome(7.0, reason="OVERLOADED"),
        Outcome(24.0, **good),  # ends after it
    ):
        measurement.record(outcome)
    assert (measurement.offered, measurement.answered, measurement.good, measurement.ended) == (3, 2, 2, 2)
    assert measurement.errors == {"OVERLOADED": 1}
    assert measurement.first_in_time_ratio == pytest.approx(2 / 3)


@given(st.floats(1, 1000), st.floats(0, 1.2), st.integers(1, 12))
async def test_a_search_ends_just_under_the_limit(most: float, share: float, runs: int) -> None:
    async def passes(rate: float) -> bool:
        return rate <= share * most

    found = await highest(passes, most, runs)
    assert found <= min(share * most, most)
    assert min(share, 1) * most - found <= most / 2**runs * (1 + 1e-9)


def test_capacity_is_slots_over_the_time_of_a_request() -> None:
    workers = Workers("w", count=2, step_ms=10, slots=8, prefill_tokens_per_s=1000, growth=1.0)
    assert workers.capacity_per_s(prompt_tokens=500, answer_tokens=100) == pytest.approx(2 * 8 / (0.5 + 100 * 0.02))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_preset_scales_its_slots_and_pulse_and_is_a_fleet_that_settings_accept(name: str) -> None:
    whole, half = SCENARIOS[name], SCENARIOS[name].scaled(0.5)
    assert half.capacity_per_s == pytest.approx(whole.capacity_per_s / 2)
    assert (half.shape.pulse, half.shape.answer) == (whole.shape.pulse // 2, whole.shape.answer)
    entries = up_fleet(half.fleet, context_tokens=4096)
    settings = Settings(up=UpSettings(fleet=entries))
    members = [settings.fleet_member(position) for position in range(len(entries))]
    assert [member.slots for member in members] == [w.slots for w in half.fleet for _ in range(w.count)]
    assert {member.engine for member in members} == {"simulated"}
