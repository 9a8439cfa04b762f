"""How many requests a worker has, counted from what it says and what this router did since."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ladr.routing.lease import Lease
from ladr.routing.policies.least_request import LeastRequest
from ladr.routing.policy import Ask
from ladr.routing.row import MAX_UNTOLD, Row
from ladr.v1 import fleet_pb2, generation_pb2


class Stage:
    """A worker whose true depth is known, this router's row of it, and others that send there too."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sequence = 0
        self.revision = 0
        self.others = 0
        self.own: list[Lease] = []
        self.row = Row(fleet_pb2.WorkerReport(worker_id="w", slots=4), 0.7)

    @property
    def truth(self) -> int:
        return self.others + len(self.own)

    def report(self) -> fleet_pb2.WorkerReport:
        self.sequence += 1
        return fleet_pb2.WorkerReport(
            worker_id="w", slots=4, sequence=self.sequence, running=self.truth, load_revision=self.revision
        )

    def load(self) -> generation_pb2.Load:
        return generation_pb2.Load(running=self.truth, revision=self.revision)

    def send(self) -> None:
        self.revision += 1
        self.own.append(Lease(self.row, Ask(10, 5.0), LeastRequest(), lambda row: None, clock=lambda: self.now_s))

    def end(self, place: int, tells: bool) -> None:
        lease = self.own.pop(place % len(self.own))
        self.revision += 1
        lease.finished(5, self.load() if tells else None)
        lease.release()


steps = st.lists(
    st.tuples(st.sampled_from(["send", "end", "other", "report"]), st.integers(0, 9), st.booleans()),
    max_size=80,
)


@given(steps)
def test_with_this_router_alone_the_depth_is_the_truth_at_every_moment(script: list[tuple[str, int, bool]]) -> None:
    stage = Stage()
    for kind, place, tells in script:
        stage.now_s += 0.01
        if kind == "send":
            stage.send()
            if tells:
                stage.own[-1].started(stage.load())
        elif kind == "end" and stage.own:
            stage.end(place, tells)
        elif kind == "report":
            stage.row.hear(stage.report(), stage.now_s)
        assert stage.row.depth == stage.truth


@given(steps)
def test_with_others_the_depth_is_the_truth_after_each_word_of_the_worker(script: list[tuple[str, int, bool]]) -> None:
    stage = Stage()
    for kind, place, _ in script:
        stage.now_s += 0.01
        if kind == "send":
            stage.send()
        elif kind == "end" and stage.own:
            stage.end(place, True)
            assert stage.row.depth == stage.truth
        elif kind == "other":
            stage.others = place
            stage.revision += 1
        elif kind == "report":
            stage.row.hear(stage.report(), stage.now_s)
            assert stage.row.depth == stage.truth
        assert stage.row.depth >= stage.row.in_flight == len(stage.own)
        assert stage.row.own_tokens >= 0


def test_an_older_word_that_comes_late_changes_nothing() -> None:
    stage = Stage()
    stage.others = 7
    stage.revision = 1
    late = stage.report()
    stage.others = 0
    stage.revision = 2
    stage.row.load(stage.load(), 0.0, 0.1)
    stage.row.hear(late, 0.2)
    assert stage.row.depth == 0


def test_a_worker_that_never_says_anything_does_not_make_the_count_grow() -> None:
    stage = Stage()
    for _ in range(3 * MAX_UNTOLD):
        stage.now_s += 0.01
        stage.send()
        stage.end(0, False)
    assert stage.row.depth == 0
    assert len(stage.row._sends) <= MAX_UNTOLD + 1
    assert len(stage.row._ends) <= MAX_UNTOLD + 1
    assert abs(stage.row.own_tokens) < 1e-6
