"""The pure core, against a second one that keeps everything and searches it all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladr.errors import Overloaded
from ladr.v1.fleet_pb2 import WORKER_STATE_READY, WORKER_STATE_STOPPED
from services.metrics.fleet import Fleet
from tests.metrics.buses import report

TTL_S = 1.0


class DumbFleet:
    """Rows (id, order, time, version) in plain lists, and a copy of them for each version there ever was."""

    def __init__(self, max_workers: int) -> None:
        self.max_workers = max_workers
        self.live: list[tuple] = []
        self.gone: list[tuple] = []
        self.past = [([], [])]

    def hear(self, worker_id, order, stopped, now_s):
        live = [row for row in self.live if row[0] == worker_id]
        same_life_gone = [row for row in self.gone if row[0] == worker_id and row[1][0] == order[0]]
        if any(row[1] >= order for row in live + same_life_gone):
            return False
        was_live = [row for row in self.live if row[0] == worker_id]
        if not stopped and not was_live and len(self.live) == self.max_workers:
            return None
        self._change(worker_id, order, max([now_s] + [row[2] for row in was_live if not stopped]), stopped)
        return True

    def expire(self, now_s):
        silent = [row for row in self.live if now_s >= row[2] + TTL_S]
        for row in sorted(silent, key=lambda row: row[3]):
            self._change(row[0], row[1], now_s, True)
        self.gone = [row for row in self.gone if now_s - row[2] < 10 * TTL_S]
        self.past[-1] = (list(self.live), list(self.gone))
        return [row[0] for row in silent]

    def since(self, version):
        live, gone = self.past[version]
        return (
            {row for row in self.live if row not in live},
            {row for row in self.gone if row not in gone} if version else set(),
        )

    def _change(self, worker_id, order, now_s, dead):
        row = (worker_id, order, now_s, len(self.past))
        self.live = [row for row in self.live if row[0] != worker_id]
        self.gone = [row for row in self.gone if row[0] != worker_id]
        (self.gone if dead else self.live).append(row)
        self.gone = self.gone[-self.max_workers :]
        self.past.append((list(self.live), list(self.gone)))


reports = st.tuples(
    st.just("hear"),
    st.sampled_from("abcd"),
    st.tuples(st.sampled_from(["1", "2", "3"]), st.integers(1, 4)),
    st.booleans(),
    st.sampled_from([0.0, 0.25, 0.5]),  # how old the report is already
)
steps = st.one_of(reports, st.tuples(st.just("pass"), st.sampled_from([0.25, 0.5, 1.0, 5.0])), st.just(("ask",)))


@settings(max_examples=500, deadline=None)
@given(st.lists(steps, max_size=60), st.integers(1, 4), st.data())
def test_the_fleet_does_what_the_dumb_one_does(steps: list, max_workers: int, data: st.DataObject) -> None:
    fleet, dumb, now_s = Fleet(TTL_S, max_workers), DumbFleet(max_workers), 100.0
    for step in steps:
        if step[0] == "hear":
            _, worker_id, order, stopped, age_s = step
            state = WORKER_STATE_STOPPED if stopped else WORKER_STATE_READY
            try:
                heard = fleet.hear(report(worker_id, order[1], order[0], state=state), now_s - age_s)
            except Overloaded:
                heard = None
            assert heard == dumb.hear(worker_id, order, stopped, now_s - age_s)
        elif step[0] == "pass":
            now_s += step[1]
            assert [one.worker_id for one in fleet.expire(now_s)] == dumb.expire(now_s)
            assert fleet.next_expiry_s() > now_s
        else:
            version = data.draw(st.integers(0, fleet.version))
            changes = fleet.since(version)
            workers = {(e.report.worker_id, e.order, e.heard_s, e.version) for e in changes.workers}
            gone = {(one.worker_id, one.order, one.gone_s, one.version) for one in changes.gone}
            assert (workers, gone) == dumb.since(version)
            assert changes.version == len(dumb.past) - 1
        assert len(fleet) == len(dumb.live) <= max_workers


@settings(deadline=None)
@given(st.lists(st.tuples(reports, st.booleans()), max_size=60))
def test_who_asks_now_and_then_sees_the_same_fleet_as_who_asks_always(steps: list) -> None:
    fleet, seen, version = Fleet(TTL_S, 10), {}, 0
    for now_s, ((_, worker_id, order, stopped, _), ask) in enumerate(steps):
        state = WORKER_STATE_STOPPED if stopped else WORKER_STATE_READY
        fleet.hear(report(worker_id, order[1], order[0], state=state), now_s / 5)
        fleet.expire(now_s / 5)
        if ask:
            changes = fleet.since(version)
            version = changes.version
            seen |= {entry.report.worker_id: entry for entry in changes.workers}
            for one in changes.gone:
                seen.pop(one.worker_id, None)
            assert seen == {entry.report.worker_id: entry for entry in fleet.since(0).workers}


def test_a_newer_incarnation_replaces_an_older_whatever_their_sequences() -> None:
    fleet = Fleet(TTL_S, 10)
    assert fleet.hear(report(sequence=900, incarnation="0198a"), 0.0)
    assert fleet.hear(report(sequence=1, incarnation="0198b"), 0.0)
    assert not fleet.hear(report(sequence=901, incarnation="0198a"), 0.0)
    assert fleet.since(0).workers[0].order == ("0198b", 1)


def test_a_late_report_does_not_raise_a_worker_that_said_goodbye() -> None:
    fleet = Fleet(TTL_S, 10)
    fleet.hear(report(sequence=2, state=WORKER_STATE_STOPPED), 0.0)
    assert not fleet.hear(report(sequence=1), 0.1)
    assert fleet.hear(report(sequence=1, incarnation="1"), 0.2)


def test_a_worker_whose_clock_went_back_is_heard_once_its_former_life_has_ended() -> None:
    fleet = Fleet(TTL_S, 10)
    fleet.hear(report(incarnation="9"), 0.0)
    assert not fleet.hear(report(incarnation="8"), 0.5)
    fleet.expire(1.0)
    assert fleet.hear(report(incarnation="8"), 2.0)
    assert [entry.report.incarnation for entry in fleet.since(0).workers] == ["8"]


def test_a_worker_too_many_is_told_when_to_come_again() -> None:
    fleet = Fleet(TTL_S, 1)
    fleet.hear(report("a"), 0.0)
    with pytest.raises(Overloaded) as error:
        fleet.hear(report("b"), 0.0)
    assert error.value.retry_after
    assert fleet.hear(report("a", 2), 0.0)


def test_while_the_backend_is_lost_only_the_workers_heard_here_can_fall_silent() -> None:
    fleet = Fleet(TTL_S, 10)
    fleet.hear(report("here"), 0.0)
    fleet.hear(report("there"), 0.0, here=False)
    assert fleet.next_expiry_s(here_alone=True) == TTL_S
    assert [one.worker_id for one in fleet.expire(5.0, here_alone=True)] == ["here"]
    assert fleet.next_expiry_s(here_alone=True) == float("inf")
    assert [one.worker_id for one in fleet.expire(5.0)] == ["there"]
