"""The scoreboard as weights: a RouteTable each tick, to a bounded number of watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta

from ladr.errors import Draining, Overloaded
from ladr.routing.board import Scoreboard
from ladr.routing.policy import Policy
from ladr.routing.row import Row
from ladr.routing.score import relative_latencies, score
from ladr.v1 import router_pb2

MAX_WATCHERS = 1024


class Routes:
    """Makes tables: all workers each tick, those of one model when they are watched. A slow watcher misses tables in between.

    Args: policy: gives the policy that picks at this moment (another one while no reports come).
    """

    def __init__(
        self, board: Scoreboard, policy: Callable[[float], Policy], name: str, alpha: float, beta: float
    ) -> None:
        self._board = board
        self._policy = policy
        self._news = asyncio.Event()
        self._closed = False
        self._watchers = 0
        self._tables: dict[str, router_pb2.RouteTable] = {}
        self._now_s = 0.0
        self.table = router_pb2.RouteTable(policy=name, alpha=alpha, beta=beta, degraded=True)

    def tick(self, now_s: float) -> None:
        """Make the table anew and tell the watchers."""
        self._now_s = now_s
        self.table = self._make("")
        self._tables = {}
        self._tell()

    def close(self) -> None:
        """End all watches with Draining: their watchers go to another router."""
        self._closed = True
        self._tell()

    async def watch(self, model: str) -> AsyncGenerator[router_pb2.RouteTable]:
        """Tables for ever, the present one first; only workers where `model` is ready, if it is not empty.

        Raises: Overloaded: a watcher too many. Draining: the router is going away.
        """
        if self._watchers >= MAX_WATCHERS:
            raise Overloaded("the router has all the watchers that it may have", retry_after=timedelta(seconds=1))
        self._watchers += 1
        try:
            while not self._closed:
                news = self._news
                yield self._table_of(model)
                await news.wait()
            raise Draining("this router is going away; watch another")
        finally:
            self._watchers -= 1

    def _table_of(self, model: str) -> router_pb2.RouteTable:
        if not model:
            return self.table
        if model not in self._tables:
            self._tables[model] = self._make(model)
        return self._tables[model]

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _make(self, model: str) -> router_pb2.RouteTable:
        """Rows with their scores; weights are of the policy, over the eligible ones."""
        board, last, now_s = self._board, self.table, self._now_s
        rows = [row for row in board.rows() if not model or model in row.models]
        reasons = {row.worker_id: board.ineligible(row, now_s) for row in rows}
        eligible = [row for row in rows if not reasons[row.worker_id]]
        weights = self._policy(now_s).weights(eligible) if eligible else []
        share = dict(zip((row.worker_id for row in eligible), weights, strict=True))
        fastest_s = min((row.latency_s for row in eligible if row.latency_s), default=None)
        table = router_pb2.RouteTable(
            version=last.version if model else last.version + 1,
            policy=last.policy,
            degraded=board.blind(now_s),
            alpha=last.alpha,
            beta=last.beta,
        )
        table.computed_at.GetCurrentTime()
        if fastest_s is not None:
            table.fastest_latency.FromTimedelta(timedelta(seconds=fastest_s))
        for row in rows:
            relative = relative_latencies([row.latency_s, fastest_s])[0]
            points = score(relative, row.queue, last.alpha, last.beta)
            route = table.routes.add()
            _fill(route, row, points, share.get(row.worker_id, 0.0))
            route.ineligible_reason = reasons[row.worker_id]
            route.age.FromTimedelta(timedelta(seconds=max(0.0, board.age_s(row, now_s))))
        return table


def _fill(route: router_pb2.Route, row: Row, points: float, weight: float) -> None:
    report = row.report
    route.worker_id = row.worker_id
    route.incarnation = report.incarnation
    route.address = report.address
    route.models.extend(sorted(row.models))
    route.weight = weight
    route.score = points
    route.queue = row.queue
    route.slots = report.slots
    route.running = report.running
    route.queued = report.queued
    route.depth = row.depth
    if row.latency_s is not None:
        route.latency.FromTimedelta(timedelta(seconds=row.latency_s))
    if row.pace_s is not None:
        route.time_per_output_token.FromTimedelta(timedelta(seconds=row.pace_s))
