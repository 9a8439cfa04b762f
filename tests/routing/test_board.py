"""The scoreboard with a clock turned by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladr.routing.board import FORGET_S, Scoreboard
from ladr.routing.lease import Lease
from ladr.routing.policies.least_request import LeastRequest
from ladr.routing.policy import Ask
from ladr.routing.row import Row
from ladr.v1 import fleet_pb2, metrics_pb2

MODEL = "m"


def report(
    worker: str = "w", life: str = "1", sequence: int = 1, state: int = fleet_pb2.WORKER_STATE_READY, **fields: object
) -> fleet_pb2.WorkerReport:
    made = fleet_pb2.WorkerReport(
        worker_id=worker, incarnation=life, sequence=sequence, address="127.0.0.1:1", state=state, slots=4, **fields
    )
    made.models.add(name=MODEL, state=fleet_pb2.MODEL_STATE_READY)
    return made


def update(*reports: fleet_pb2.WorkerReport, age_s: float = 0.0) -> metrics_pb2.FleetUpdate:
    made = metrics_pb2.FleetUpdate()
    for one in reports:
        made.workers.add(report=one).age.FromTimedelta(timedelta(seconds=age_s))
    return made


def board(*reports: fleet_pb2.WorkerReport, now_s: float = 0.0, slow_start_s: float = 0.0) -> Scoreboard:
    made = Scoreboard(theta=0.7, ttl_s=1.0, slow_start_s=slow_start_s)
    made.hear(update(*reports), now_s)
    return made


def lease(row: Row, now_s: float = 0.0) -> Lease:
    return Lease(row, Ask(), LeastRequest(), lambda row: None, clock=lambda: now_s)


def names(scoreboard: Scoreboard, now_s: float) -> list[str]:
    return [row.worker_id for row in scoreboard.eligible(MODEL, now_s)]


def test_a_silent_worker_gets_no_request_after_one_second() -> None:
    fleet = board(report("a"), report("b"))
    for tick in range(1, 11):
        fleet.hear(update(report("b", sequence=tick + 1)), tick * 0.2)
    assert names(fleet, 0.99) == ["a", "b"]
    assert names(fleet, 1.01) == ["b"]


def test_the_age_that_the_bus_tells_counts_as_silence() -> None:
    fleet = board()
    for tick in range(1, 26):
        fleet.hear(update(), tick * 0.2)
    fleet.hear(update(report("a"), age_s=0.8), 5.0)
    assert names(fleet, 5.15) == ["a"]
    assert names(fleet, 5.25) == []


def test_a_worker_that_reports_again_is_back() -> None:
    fleet = board(report("a"))
    for tick in range(1, 20):
        fleet.hear(update(), tick * 0.2)
    assert names(fleet, 3.8) == []
    fleet.hear(update(report("a", sequence=9)), 3.9)
    assert names(fleet, 4.0) == ["a"]


def test_draining_starting_and_stopped_workers_get_nothing() -> None:
    fleet = board(
        report("a", state=fleet_pb2.WORKER_STATE_DRAINING),
        report("b", state=fleet_pb2.WORKER_STATE_STARTING),
        report("c", state=fleet_pb2.WORKER_STATE_STOPPED),
        report("d"),
    )
    assert names(fleet, 0.1) == ["d"]
    assert [fleet.ineligible(row, 0.1) for row in fleet.rows()] == ["draining", "starting", "stopped", ""]


def test_a_worker_whose_event_loop_is_stuck_gets_nothing() -> None:
    stuck = report("a")
    stuck.loop_lag.FromTimedelta(timedelta(seconds=1.5))
    assert names(board(stuck), 0.1) == []


def test_without_the_bus_the_fleet_stands_as_it_was() -> None:
    fleet = board(report("a"), report("b"))
    assert not fleet.blind(0.5)
    assert fleet.blind(0.6)
    assert names(fleet, 60.0) == ["a", "b"]


def test_a_stream_that_breaks_leaves_the_fleet_as_it_was_at_once() -> None:
    fleet = board(report("a"))
    fleet.lost()
    assert fleet.blind(0.01)
    fleet.hear(update(), 0.9)
    assert names(fleet, 1.3) == ["a"]  # heard 1.3 s ago, listened for 0.4 s


def test_after_the_bus_is_back_each_worker_has_a_ttl_to_be_heard_again() -> None:
    fleet = board(report("a"), report("b"))
    fleet.hear(update(report("b", sequence=2)), 50.0)
    assert names(fleet, 50.9) == ["a", "b"]
    for tick in range(1, 7):
        fleet.hear(update(report("b", sequence=2 + tick)), 50.0 + tick * 0.2)
    assert names(fleet, 51.3) == ["b"]


def test_gone_is_gone_at_once_but_only_that_life() -> None:
    fleet = board(report("a", life="1"), report("b", life="2"))
    gone = metrics_pb2.FleetUpdate()
    gone.gone.add(worker_id="a", incarnation="1")
    gone.gone.add(worker_id="b", incarnation="1")
    fleet.hear(gone, 0.1)
    assert names(fleet, 0.1) == ["b"]


def test_a_later_life_replaces_an_earlier_one_and_not_the_other_way_round() -> None:
    fleet = board(report("a", life="1", sequence=90))
    with lease(fleet.rows()[0]):
        fleet.hear(update(report("a", life="2", sequence=1)), 0.1)
        row = fleet.rows()[0]
        assert (row.report.incarnation, row.in_flight) == ("2", 0)
        fleet.hear(update(report("a", life="1", sequence=91)), 0.2)
        assert fleet.rows()[0] is row
    assert row.in_flight == 0


def test_an_older_report_changes_nothing() -> None:
    fleet = board(report("a", sequence=5, running=3))
    fleet.hear(update(report("a", sequence=4, running=0)), 0.1)
    assert fleet.rows()[0].report.running == 3


def test_an_unreachable_worker_is_left_alone_until_it_is_heard_again() -> None:
    fleet = board(report("a"))
    row = fleet.rows()[0]
    row.unreachable(0.1)
    assert fleet.ineligible(row, 0.15) == "unreachable"
    assert fleet.ineligible(row, 0.5) == "unreachable"
    fleet.hear(update(report("a", sequence=2)), 0.5)
    assert names(fleet, 0.5) == ["a"]


def test_a_worker_that_reports_but_cannot_be_reached_is_tried_less_and_less() -> None:
    fleet = board(report("a"))
    row = fleet.rows()[0]
    waits = []
    now_s = 0.0
    for _ in range(6):
        row.unreachable(now_s)
        failed_s = now_s
        while not names(fleet, now_s):
            now_s += 0.01
            fleet.hear(update(report("a", sequence=row.report.sequence + 1)), now_s)
        waits.append(now_s - failed_s)
    assert waits == sorted(waits)
    assert 0.15 < waits[0] < 0.25
    assert 4.9 < waits[-1] < 5.1


def test_a_worker_that_refused_as_draining_gets_nothing_until_its_next_report_decides() -> None:
    fleet = board(report("a"))
    fleet.rows()[0].drains()
    assert names(fleet, 0.1) == []
    fleet.hear(update(report("a", sequence=2)), 0.2)
    assert names(fleet, 0.2) == ["a"]


def test_requests_sent_since_the_report_count_in_the_queue() -> None:
    fleet = board(report("a", running=2))
    row = fleet.rows()[0]
    with lease(row), lease(row), lease(row):
        assert row.queue == 2 + 3
        fleet.hear(update(report("a", sequence=2, running=6)), 0.2)
        assert abs(row.queue - (0.7 * 2 + 0.3 * 6)) < 1e-9
    fleet.hear(update(report("a", sequence=3)), 0.4)
    assert row.queue < 3


def test_the_queue_is_never_under_the_routers_own_open_requests() -> None:
    fleet = board(report("a"))
    row = fleet.rows()[0]
    with lease(row), lease(row):
        fleet.hear(update(report("a", sequence=2)), 0.2)
        assert row.queue == 2


def test_latency_is_the_mean_of_what_came_between_two_reports() -> None:
    def with_ttft(sequence: int, count: int, sum_s: float) -> fleet_pb2.WorkerReport:
        made = report("a", sequence=sequence)
        made.time_to_first_token.count = count
        made.time_to_first_token.sum.FromTimedelta(timedelta(seconds=sum_s))
        return made

    fleet = board(with_ttft(1, 0, 0.0))
    row = fleet.rows()[0]
    assert row.latency_s is None
    fleet.hear(update(with_ttft(2, 4, 2.0)), 0.2)
    assert row.latency_s == 0.5
    fleet.hear(update(with_ttft(3, 4, 2.0)), 0.4)
    assert row.latency_s == 0.5
    fleet.hear(update(with_ttft(4, 6, 5.0)), 0.6)
    assert row.latency_s is not None
    assert abs(row.latency_s - (0.49 * 0.5 + 0.51 * 1.5)) < 1e-9  # two periods passed since the last sample


def test_a_silent_workers_requests_are_sent_elsewhere() -> None:
    fleet = board(report("a"))
    row = fleet.rows()[0]
    cancelled: list[str] = []
    with lease(row) as waiting, lease(row) as answering:
        waiting.cancel = lambda: cancelled.append("waiting")
        answering.cancel = lambda: cancelled.append("answering")
        answering.first_token = True
        for tick in range(1, 10):
            fleet.hear(update(), tick * 0.2)
            fleet.sweep(tick * 0.2)
        assert sorted(cancelled) == ["answering", "waiting"]
        assert waiting.revoked
        assert answering.revoked


def test_a_worker_long_silent_is_forgotten_but_not_while_a_stream_is_open() -> None:
    fleet = board(report("a"), report("b"))
    gone = metrics_pb2.FleetUpdate()
    gone.gone.add(worker_id="b", incarnation="1")
    now_s = 0.0

    def listen(for_s: float) -> None:
        nonlocal now_s
        until_s = now_s + for_s
        while now_s < until_s:
            now_s += 0.2
            fleet.hear(gone, now_s)
            fleet.sweep(now_s)

    with lease(fleet.rows()[0]):
        listen(5)
        assert [row.worker_id for row in fleet.rows()] == ["a", "b"]
        listen(FORGET_S)
        assert [row.worker_id for row in fleet.rows()] == ["a"]
    listen(0.2)
    assert fleet.rows() == []


def test_a_new_life_whose_clock_is_behind_is_taken_once_the_old_one_is_silent() -> None:
    fleet = board(report("a", life="2"))
    fleet.hear(update(report("a", life="1")), 0.3)
    assert fleet.rows()[0].report.incarnation == "2"
    for tick in range(2, 8):
        fleet.hear(update(), tick * 0.2)
    fleet.hear(update(report("a", life="1", sequence=9)), 1.5)
    assert fleet.rows()[0].report.incarnation == "1"
    assert names(fleet, 1.5) == ["a"]


def test_an_engine_that_fails_in_a_row_is_left_alone_longer_and_longer_until_it_serves() -> None:
    fleet = board(report("a"))
    row = fleet.rows()[0]
    row.broke(0.0)
    assert names(fleet, 0.0) == ["a"]  # once may be the request's fault
    row.broke(0.1)
    assert names(fleet, 0.2) == []
    fleet.hear(update(report("a", sequence=2)), 0.2)
    assert names(fleet, 0.2) == []  # that it reports says nothing of its engine
    fleet.hear(update(report("a", sequence=3)), 0.6)
    assert names(fleet, 0.6) == ["a"]
    row.served(0.6)
    row.broke(0.7)
    assert names(fleet, 0.7) == ["a"]


def test_requests_that_fail_together_count_as_one_failure() -> None:
    fleet = board(report("a"))
    row = fleet.rows()[0]
    for _ in range(20):
        row.unreachable(0.1)
    fleet.hear(update(report("a", sequence=2)), 0.35)
    assert names(fleet, 0.35) == ["a"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["report", "lag", "drain", "stop", "gone", "fail", "broke", "drains", "lost", "update"]),
            st.sampled_from("abc"),
            st.floats(0, 0.7),
            st.floats(0, 0.7),
        ),
        max_size=40,
    )
)
def test_the_quick_way_to_the_eligible_is_the_same_as_asking_each_why_not(
    steps: list[tuple[str, str, float, float]],
) -> None:
    fleet = board(report("a"), report("b"), report("c"))
    now_s = 0.0
    sequence = 1
    for kind, worker, after_s, gap_s in steps:
        now_s += after_s
        sequence += 1
        row = fleet.get(worker)
        assert row
        if kind == "gone":
            gone = metrics_pb2.FleetUpdate()
            gone.gone.add(worker_id=worker, incarnation="1")
            fleet.hear(gone, now_s)
        elif kind in ("report", "lag", "drain", "stop"):
            states = {"drain": fleet_pb2.WORKER_STATE_DRAINING, "stop": fleet_pb2.WORKER_STATE_STOPPED}
            made = report(worker, sequence=sequence, state=states.get(kind, fleet_pb2.WORKER_STATE_READY))
            if kind == "lag":
                made.loop_lag.FromTimedelta(timedelta(seconds=2))
            fleet.hear(update(made), now_s)
        elif kind == "update":
            fleet.hear(update(), now_s)
        elif kind == "lost":
            fleet.lost()
        else:
            happens = {"fail": row.unreachable, "broke": row.broke}.get(kind, lambda _, row=row: row.drains())
            happens(now_s)
        for _ in range(2):
            now_s += gap_s
            slow = [row.worker_id for row in fleet.rows() if not fleet.ineligible(row, now_s)]
            assert sorted(names(fleet, now_s)) == slow


def test_while_the_bus_misses_the_others_silence_means_nothing_but_gone_is_gone() -> None:
    fleet = board(report("a"), report("b"))
    for tick in range(1, 20):
        told = metrics_pb2.FleetUpdate(degraded=True)
        if tick == 5:
            told.gone.add(worker_id="b", incarnation="1")
        fleet.hear(told, tick * 0.2)
    assert names(fleet, 3.9) == ["a"]
    for tick in range(20, 27):
        fleet.hear(update(), tick * 0.2)
    assert names(fleet, 5.2) == []  # the store is back, and a TTL has passed


def test_figures_that_make_no_sense_are_not_taken() -> None:
    fleet = board()
    odd = report("a")
    odd.time_to_first_token.count = 1
    for seconds in (-5, 10**15):
        odd.time_to_first_token.sum.seconds = seconds
        odd.sequence += 1
        fleet.hear(update(odd), 0.1)
        row = fleet.rows()[0]
        assert row.latency_s is None


def test_the_board_is_bounded_and_makes_room_of_the_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ladr.routing.board.MAX_ROWS", 2)
    fleet = board(report("a"), report("b"))
    fleet.hear(update(report("c")), 0.1)
    assert [row.worker_id for row in fleet.rows()] == ["a", "b"]
    for tick in range(1, 8):
        fleet.hear(update(report("b", sequence=1 + tick)), tick * 0.2)
    fleet.hear(update(report("c")), 1.5)
    assert [row.worker_id for row in fleet.rows()] == ["b", "c"]


def test_a_request_that_came_and_went_between_two_reports_is_not_counted_as_sent() -> None:
    fleet = board(report("a"))
    row = fleet.rows()[0]
    with lease(row):
        assert row.sent == 1
    assert row.sent == 0
    with lease(row):
        fleet.hear(update(report("a", sequence=2, running=1)), 0.2)
        assert row.depth == 1
    assert row.depth == 1 - 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.integers(1, 8)), max_size=60))
def test_the_newest_report_of_the_newest_life_wins_in_any_order(heard: list[tuple[str, int, int]]) -> None:
    fleet = board()
    for step, (worker, life, sequence) in enumerate(heard):
        fleet.hear(update(report(worker, str(life), sequence)), step * 0.01)
    dumb: dict[str, tuple[str, int]] = {}
    for worker, life, sequence in heard:
        dumb[worker] = max(dumb.get(worker, ("", 0)), (str(life), sequence))
    assert {row.worker_id: (row.report.incarnation, row.report.sequence) for row in fleet.rows()} == dumb


@given(st.lists(st.integers(0, 9), max_size=60))
def test_in_flight_is_exactly_the_leases_that_are_open(script: list[int]) -> None:
    fleet = board(report("a"))
    row = fleet.rows()[0]
    held: list[Lease] = []
    for step in script:
        if step < 6 or not held:
            held.append(lease(row))
        else:
            held.pop(step % len(held)).release()
        assert row.in_flight == len(held) == len(row.leases)
    for one in held:
        one.release()
        one.release()
    assert row.in_flight == 0


def test_a_worker_that_joins_a_warm_fleet_starts_slowly() -> None:
    fleet = board(report("a"), slow_start_s=2.0)
    for tick in range(1, 16):
        fleet.hear(update(report("a", sequence=1 + tick)), tick * 0.2)
    fleet.hear(update(report("b")), 3.0)
    assert names(fleet, 3.0) == ["a", "b"]
    row = fleet.get("b")
    assert row
    with lease(row, 3.0):
        assert names(fleet, 3.1) == ["a"]  # one at first, of four slots
        fleet.hear(update(report("a", sequence=90), report("b", sequence=2)), 4.1)
        assert names(fleet, 4.1) == ["a", "b"]  # two after half the time
        with lease(row, 4.1), lease(row, 4.1):
            assert names(fleet, 4.2) == ["a"]
            fleet.hear(update(report("a", sequence=91), report("b", sequence=3)), 5.0)
            assert names(fleet, 5.0) == ["a", "b"]


def test_a_fleet_that_starts_together_does_not_wait_for_itself() -> None:
    fleet = board(report("a"), report("b"), slow_start_s=2.0)
    first, second = fleet.rows()
    with lease(first), lease(first), lease(second), lease(second):
        assert names(fleet, 0.1) == ["a", "b"]


def test_an_outlier_is_ejected_and_says_so() -> None:
    fleet = board(report("a"), report("b"), report("c"))
    row = fleet.get("c")
    assert row
    for n in range(20):
        for name in "ab":
            fleet.rows()["ab".index(name)].served(0.1)
        if n % 2:
            row.served(0.1)
        else:
            row.broke(0.1)
    fleet.sweep(0.2)
    assert names(fleet, 0.2) == ["a", "b"]
    assert fleet.ineligible(row, 0.2) == "ejected"
