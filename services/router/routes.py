"""The scoreboard as weights: a RouteTable each tick, to any number of watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

from ladr.errors import Draining
from ladr.v1 import router_pb2
from services.router.score import relative_latencies, score, weights
from services.router.scoreboard import Row, Scoreboard


class Routes:
    """Holds the newest table. A slow watcher misses tables in between, never the newest."""

    def __init__(self, policy: str, alpha: float, beta: float) -> None:
        self._policy = policy
        self._alpha = alpha
        self._beta = beta
        self._news = asyncio.Event()
        self._closed = False
        self.table = router_pb2.RouteTable(policy=policy, alpha=alpha, beta=beta, degraded=True)

    def tick(self, board: Scoreboard, now_s: float) -> None:
        """Make the table anew and tell the watchers."""
        self.table = route_table(board, now_s, self._policy, self._alpha, self._beta, self.table.version + 1)
        self._tell()

    def close(self) -> None:
        """End all watches with Draining: their watchers go to another router."""
        self._closed = True
        self._tell()

    async def watch(self, model: str) -> AsyncIterator[router_pb2.RouteTable]:
        """Tables for ever, the present one first; only workers that serve `model`, if it is not empty.

        Raises: Draining: the router is going away.
        """
        while not self._closed:
            news = self._news
            yield narrowed(self.table, model)
            await news.wait()
        raise Draining("this router is going away; watch another")

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def narrowed(table: router_pb2.RouteTable, model: str) -> router_pb2.RouteTable:
    """The table with the workers of one model alone, their weights again summing to 1."""
    if not model:
        return table
    kept = router_pb2.RouteTable()
    kept.CopyFrom(table)
    del kept.routes[:]
    kept.routes.extend(route for route in table.routes if model in route.models)
    total = sum(route.weight for route in kept.routes)
    for route in kept.routes:
        route.weight = route.weight / total if total else 0.0
    return kept


def route_table(
    board: Scoreboard, now_s: float, policy: str, alpha: float, beta: float, version: int
) -> router_pb2.RouteTable:
    """All rows with their scores; weights over the eligible ones."""
    rows = board.rows()
    latencies = [row.latency_s for row in rows]
    scores = [
        score(relative, row.queue, alpha, beta)
        for relative, row in zip(relative_latencies(latencies), rows, strict=True)
    ]
    may = [not board.ineligible(row, now_s) for row in rows]
    shares = iter(weights([one for one, eligible in zip(scores, may, strict=True) if eligible]))
    table = router_pb2.RouteTable(version=version, policy=policy, degraded=board.blind(now_s), alpha=alpha, beta=beta)
    table.computed_at.GetCurrentTime()
    if known := [latency for latency in latencies if latency]:
        table.fastest_latency.FromTimedelta(timedelta(seconds=min(known)))
    for row, points, eligible in zip(rows, scores, may, strict=True):
        table.routes.append(_route(row, points, next(shares) if eligible else 0.0))
    return table


def _route(row: Row, points: float, weight: float) -> router_pb2.Route:
    report = row.report
    route = router_pb2.Route(
        worker_id=row.worker_id,
        incarnation=report.incarnation,
        address=report.address,
        models=sorted(row.models),
        weight=weight,
        score=points,
        queue=row.queue,
        slots=report.slots,
        running=report.running,
        queued=report.queued,
    )
    if row.latency_s is not None:
        route.latency.FromTimedelta(timedelta(seconds=row.latency_s))
    if row.pace_s is not None:
        route.time_per_output_token.FromTimedelta(timedelta(seconds=row.pace_s))
    return route
