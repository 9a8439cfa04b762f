"""Tables for watchers: whole ones and changes say the same."""

from __future__ import annotations

import time
from contextlib import aclosing
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladr.config import RouterSettings
from ladr.errors import Draining, Overloaded
from ladr.routing.board import Scoreboard
from ladr.routing.policies.least_request import LeastRequest
from ladr.v1 import fleet_pb2, metrics_pb2, router_pb2
from services.router import routes
from services.router.routes import Routes


class Board:
    """A fleet that changes as it is told, and the tables over it; time is turned by hand."""

    def __init__(self, **fields: object) -> None:
        self.now_s = time.monotonic()
        self.sequence = 0
        self.board = Scoreboard(0.7, 1.0)
        policy = LeastRequest()
        given = RouterSettings(**fields)  # type: ignore[arg-type]
        self.routes = Routes(self.board, lambda _: policy, policy, given, given.canaries)

    def hear(self, workers: dict[str, int], gone: list[str]) -> None:
        """Workers with the number of requests that they run, and workers that said goodbye."""
        self.sequence += 1
        update = metrics_pb2.FleetUpdate()
        for name, running in workers.items():
            report = update.workers.add().report
            report.MergeFrom(
                fleet_pb2.WorkerReport(
                    worker_id=name,
                    incarnation="1",
                    sequence=self.sequence,
                    address="h:1",
                    slots=4,
                    running=running,
                    state=fleet_pb2.WORKER_STATE_READY,
                    engine="simulated",
                )
            )
            report.models.add(name="m", state=fleet_pb2.MODEL_STATE_READY)
        for name in gone:
            update.gone.add(worker_id=name, incarnation="1")
        self.board.hear(update, self.now_s)

    def tick(self) -> None:
        self.now_s += 0.2
        self.board.sweep(self.now_s)
        self.routes.tick(self.now_s)


def plain(route: router_pb2.Route) -> bytes:
    """A row without what only tells its age."""
    copy = router_pb2.Route.FromString(route.SerializeToString())
    copy.ClearField("age")
    copy.report.sequence = 0
    return bytes(copy.SerializeToString(deterministic=True))


changes = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3),
        st.lists(st.sampled_from("abc"), max_size=1),
    ),
    max_size=12,
)


@pytest.mark.parametrize("reports", [False, True])
@settings(deadline=None)
@given(script=changes)
async def test_changes_put_together_are_the_whole_table(
    reports: bool, script: list[tuple[dict[str, int], list[str]]]
) -> None:
    scene = Board()
    scene.hear({"a": 0}, [])
    scene.tick()
    async with (
        aclosing(scene.routes.watch("", reports, changes_only=True)) as partial,
        aclosing(scene.routes.watch("", reports)) as whole,
    ):
        mine: dict[str, router_pb2.Route] = {}
        for step, (workers, gone) in enumerate([({}, []), *script]):
            if step:
                scene.hear(workers, gone)
                scene.tick()
            table = router_pb2.RouteTable.FromString(await anext(partial))
            assert table.partial == bool(step)
            for route in table.routes:
                if route.HasField("report") or route.address:
                    mine[route.worker_id] = route
                else:
                    del mine[route.worker_id]
            there = router_pb2.RouteTable.FromString(await anext(whole))
            assert {name: plain(route) for name, route in mine.items()} == {
                route.worker_id: plain(route) for route in there.routes
            }


async def test_a_watcher_that_missed_a_table_gets_a_whole_one() -> None:
    scene = Board()
    scene.hear({"a": 0, "b": 0}, [])
    scene.tick()
    async with aclosing(scene.routes.watch("", True, changes_only=True)) as tables:
        await anext(tables)
        scene.hear({"a": 1, "b": 0}, [])
        scene.tick()
        scene.tick()
        table = router_pb2.RouteTable.FromString(await anext(tables))
        assert not table.partial
        assert len(table.routes) == 2


async def test_idle_workers_are_no_news_until_they_fall_silent() -> None:
    scene = Board()
    scene.hear({"a": 0, "b": 0}, [])
    scene.tick()
    async with aclosing(scene.routes.watch("", True, changes_only=True)) as tables:
        await anext(tables)
        scene.hear({"a": 2, "b": 0}, [])
        scene.tick()
        assert [r.worker_id for r in router_pb2.RouteTable.FromString(await anext(tables)).routes] == ["a"]
        for _ in range(6):
            scene.hear({"a": 2}, [])
            scene.tick()
            table = router_pb2.RouteTable.FromString(await anext(tables))
        assert [(r.worker_id, r.ineligible_reason) for r in table.routes] == [("b", "silent")]


async def test_names_behind_which_the_router_chooses_are_not_given_to_those_who_pick() -> None:
    scene = Board(aliases={"chat": "m", "smart": "shared"}, canaries={"shared": {"m": 1, "n": 1}})
    scene.tick()
    async with aclosing(scene.routes.watch("", True)) as tables:
        table = router_pb2.RouteTable.FromString(await anext(tables))
    assert dict(table.picking.aliases) == {"chat": "m"}
    assert list(table.picking.ask_router) == ["shared", "smart"]
    assert table.picking.ttl.ToTimedelta() == RouterSettings().ttl


async def test_watchers_are_bounded_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_WATCHERS", 1)
    scene = Board()
    scene.tick()
    async with aclosing(scene.routes.watch("")) as tables:
        await anext(tables)
        with pytest.raises(Overloaded):
            await anext(scene.routes.watch(""))
    watching = scene.routes.watch("")
    await anext(watching)
    scene.routes.close()
    with pytest.raises(Draining):
        await anext(watching)


@given(st.integers(0, 70_000))
def test_a_row_as_a_field_is_what_protobuf_makes_of_it(size: int) -> None:
    encoded = router_pb2.Route(worker_id="x" * size).SerializeToString()
    table = router_pb2.RouteTable.FromString(routes._field(encoded))
    assert [len(route.worker_id) for route in table.routes] == [size]


def test_the_table_counts_as_the_board_does() -> None:
    scene = Board()
    scene.hear({name: Random(1).randrange(4) for name in "abc"}, [])
    scene.tick()
    assert [route.depth for route in scene.routes.table.routes] == [row.depth for row in scene.board.rows()]
    assert abs(sum(route.weight for route in scene.routes.table.routes) - 1) < 1e-9
