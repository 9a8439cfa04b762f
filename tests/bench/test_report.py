"""What a reader is told beside the figures, and the figures of several rounds as one."""

from __future__ import annotations

import pytest

from ladr.bench.arrivals import Length, Shape
from ladr.bench.load_watch import WorkerLoads
from ladr.bench.measure import Measurement, Slo
from ladr.bench.report import LEAST, columns, result
from ladr.bench.rounds import order
from ladr.bench.run import Load, Tally, Turn
from ladr.bench.witness import Outcome

SLO = Slo(1.0)
LOAD = Load(
    scenario="chat",
    shape=Shape("poisson", Length(10), Length(10)),
    rate_per_s=1.0,
    duration_s=10.0,
    warmup_s=0.0,
    seed=0,
    slo=SLO,
    timeout_s=10.0,
    max_open=7,
    connections=1,
)


def turn(*outcomes: Outcome, crashes: tuple[str, ...] = (), sustained: float | None = None) -> Turn:
    measurement = Measurement(SLO, 0.0, 10.0)
    for outcome in outcomes:
        measurement.record(outcome)
    return Turn(measurement, WorkerLoads(), sustained, (100, 200 + len(outcomes)), list(crashes))


def tally(*turns: Turn) -> Tally:
    made = Tally(LOAD, "round-robin")
    made.turns = list(turns)
    return made


def test_rounds_are_added_up_and_told_apart() -> None:
    quick, slow = Outcome(1.0, 0.0, 0.1, 0.5, 0.01, 10), Outcome(2.0, 0.0, 3.0, 4.0, 0.03, 10)
    found = result(tally(turn(quick, quick, sustained=4.0), turn(slow, sustained=8.0)))
    assert (found["requests"], found["goodput"]) == (3, pytest.approx(2 / 3))
    assert (found["offered_qps"], found["tokens_per_s"]) == (pytest.approx(3 / 20), pytest.approx(30 / 20))
    assert (found["ttft_p50_s"], found["ttft_p99_s"]) == pytest.approx((0.1, 3.0), rel=2e-3)
    assert [each["requests"] for each in found["rounds"]] == [2, 1]
    assert (found["sustained_qps"], found["router_rss_start_bytes"], found["router_rss_peak_bytes"]) == (6.0, 100, 202)


def test_what_went_wrong_is_said() -> None:
    broken = Outcome(1.0, 0.0, 0.1, 0.5, 0.01, 10, lost=2, repeated=3)
    refused, failed = Outcome(1.0, reason="TOO_MANY_OPEN"), Outcome(2.0, reason="OVERLOADED")
    found = result(tally(turn(broken, refused, refused, failed, crashes=("fast-1 ended",)), turn(sustained=0.0)))
    assert found["notes"] == [
        "failed: 2 TOO_MANY_OPEN, 1 OVERLOADED",
        "2 tokens were lost, 3 came twice",
        "2 requests were not sent: 7 were open (--max-open)",
        "no rate that was tried keeps the SLO",
        "fast-1 ended",
    ]


@pytest.mark.parametrize(("late_s", "ttft_s", "said"), [(0.05, 0.1, True), (0.05, 5.0, False), (0.01, 0.02, False)])
def test_lateness_of_the_generator_is_said_where_it_matters(late_s: float, ttft_s: float, said: bool) -> None:
    found = result(tally(turn(Outcome(1.0, late_s, ttft_s, ttft_s + 1))))
    assert any("the generator was late itself, by 50 ms" in note for note in found["notes"]) is said


def test_a_column_without_figures_is_left_out_and_what_a_narrow_terminal_loses_exists() -> None:
    shown = columns([result(tally(turn())), result(tally(turn(Outcome(1.0, 0.0, 0.1, 0.5))))])
    assert "SUSTAINED\n/s" not in shown
    assert shown["TTFT ms\np50"] == ["-", "100"]
    assert {*LEAST} - {"ms/TOKEN\np50"} <= shown.keys()


def test_no_policy_is_always_first() -> None:
    three = [tally(), tally(), tally()]
    assert [order(three, number)[0] for number in range(3)] == three
    assert all(set(order(three, number)) == set(three) for number in range(5))
