"""The scoreboard as a table each tick, for a bounded number of watchers: whole, or only the rows that changed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from ladr.config import RouterSettings
from ladr.routing.board import Scoreboard
from ladr.routing.policy import Policy
from ladr.routing.row import Row
from ladr.routing.score import relative_latencies, score
from ladr.v1 import router_pb2
from services.router.watchers import Watchers

MAX_WATCHERS = 1024
_UNWATCHED_S = 1.0  # how often a table is made for /metrics alone
_STALE_S = 0.4  # a row whose worker was heard longer ago is news, so that its watchers count its silence too
# Fields of a report that nobody picks by.
_NOT_TO_PICK = (
    *("engine", "queue_limit", "end_to_end", "gpus", "cancelled_total", "reported_at"),
    *("tokens_total", "prompt_tokens_total", "accepted_total"),
)


@dataclass
class _Rows:
    """The rows of one tick as bytes, by worker, and which of them are news."""

    models: dict[str, frozenset[str]] = field(default_factory=dict)
    encoded: dict[str, bytes] = field(default_factory=dict)
    marks: dict[str, bytes] = field(default_factory=dict)  # a row is news when its mark is another
    news: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)  # workers that have lost a model since the tick before
    left: list[str] = field(default_factory=list)  # workers of the tick before that are here no more


class Routes:
    """Makes tables. What costs is done once a tick for all who watch in the same way, and only if anybody does.

    Args: board: what it tells of. policy: gives the policy that picks at this moment (another one while no reports come).
    main: the policy that picks while they do. splits: names that are shared between models, as they are at each moment.
    """

    def __init__(
        self,
        board: Scoreboard,
        policy: Callable[[float], Policy],
        main: Policy,
        settings: RouterSettings,
        splits: Collection[str] = (),
    ) -> None:
        self._board = board
        self._policy = policy
        self._main = main
        self._settings = settings
        self._splits = splits
        self._watchers = Watchers(MAX_WATCHERS)
        self._watching = {False: 0, True: 0}  # with reports or without
        self._rows = {False: _Rows(), True: _Rows()}
        self._tables: dict[tuple[str, bool, bool], bytes] = {}
        self._reasons: dict[str, str] = {}
        self._now_s = 0.0
        self._made_s = float("-inf")
        self.table = router_pb2.RouteTable(
            policy=settings.policy, alpha=settings.alpha, beta=settings.beta, degraded=True
        )

    def tick(self, now_s: float) -> None:
        """Make the table anew, at least each second and each time that somebody watches, and tell the watchers."""
        self._now_s = now_s
        self._tables = {}
        if not any(self._watching.values()):
            if now_s - self._made_s >= _UNWATCHED_S:
                self.fresh()
            return
        self.fresh()
        for reports, watchers in self._watching.items():
            self._rows[reports] = self._encode(reports, self._rows[reports]) if watchers else _Rows()
        self._watchers.tell()

    def fresh(self) -> router_pb2.RouteTable:
        """The table of this tick."""
        if self._now_s > self._made_s:
            self._made_s = self._now_s
            self.table = self._make()
        return self.table

    def close(self) -> None:
        """End all watches with Draining: their watchers go to another router."""
        self._watchers.close()

    async def watch(self, model: str, reports: bool = False, changes_only: bool = False) -> AsyncGenerator[bytes]:
        """Serialized tables for ever, the present one first; only workers where `model` is ready, if it is not empty.

        Raises: Overloaded: a watcher too many. Draining: the router is going away.
        """
        with self._watchers.one():
            self._watching[reports] += 1
            try:
                self.fresh()
                if not self._rows[reports].encoded:
                    self._rows[reports] = self._encode(reports, self._rows[reports])
                seen = 0
                while not self._watchers.closed:
                    news = self._watchers.news
                    version = self.table.version
                    partial = changes_only and seen == version - 1 > 0
                    seen = version
                    yield self._table(model, reports, partial)
                    await news.wait()
                raise self._watchers.leaves()
            finally:
                self._watching[reports] -= 1

    def _make(self) -> router_pb2.RouteTable:
        """Rows with their scores; weights are of the policy, over the eligible ones."""
        board, last, now_s = self._board, self.table, self._now_s
        rows = board.rows()
        self._reasons = {row.worker_id: board.ineligible(row, now_s) for row in rows}
        eligible = [row for row in rows if not self._reasons[row.worker_id]]
        weights = self._policy(now_s).weights(eligible) if eligible else []
        share = dict(zip((row.worker_id for row in eligible), weights, strict=True))
        fastest_s = min((row.latency_s for row in eligible if row.latency_s), default=None)
        ratio = self._main.parameters().get("ratio", self._settings.alpha / self._settings.beta)
        beta = (self._settings.alpha + self._settings.beta) / (1 + ratio)
        table = router_pb2.RouteTable(
            version=last.version + 1,
            policy=last.policy,
            degraded=board.blind(now_s),
            alpha=ratio * beta,
            beta=beta,
        )
        table.computed_at.GetCurrentTime()
        if fastest_s is not None:
            table.fastest_latency.FromTimedelta(timedelta(seconds=fastest_s))
        for row in rows:
            relative = relative_latencies([row.latency_s, fastest_s])[0]
            points = score(relative, row.queue, table.alpha, table.beta)
            route = table.routes.add()
            _fill(route, row, points, share.get(row.worker_id, 0.0))
            route.ineligible_reason = self._reasons[row.worker_id]
            route.age.FromTimedelta(timedelta(seconds=max(0.0, board.age_s(row, now_s))))
        return table

    def _encode(self, reports: bool, last: _Rows) -> _Rows:
        """This tick's rows as bytes, and which are news since `last`."""
        made = _Rows()
        for route in self.table.routes:
            worker_id = route.worker_id
            row = self._board.get(worker_id)
            if row is None:
                continue
            made.models[worker_id] = row.models
            if reports:
                encoded, mark = self._with_report(row, route)
            else:
                encoded = route.SerializeToString()
                mark = _mark(route)
            made.encoded[worker_id] = encoded
            made.marks[worker_id] = mark
            if last.marks.get(worker_id) != mark or self._board.age_s(row, self._now_s) > _STALE_S:
                made.news.add(worker_id)
            if last.models.get(worker_id, row.models) - row.models:
                made.lost.add(worker_id)
        made.left = [worker_id for worker_id in last.marks if worker_id not in made.marks]
        return made

    def _with_report(self, row: Row, route: router_pb2.Route) -> tuple[bytes, bytes]:
        """A row with what one picks by, and its mark."""
        short = router_pb2.Route(
            worker_id=row.worker_id, ineligible_reason=route.ineligible_reason, age=route.age, report=row.report
        )
        for name in _NOT_TO_PICK:
            short.report.ClearField(name)
        encoded = short.SerializeToString()
        short.ClearField("age")
        short.report.sequence = 0
        return encoded, short.SerializeToString(deterministic=True)

    def _table(self, model: str, reports: bool, partial: bool) -> bytes:
        key = (model, reports, partial)
        if key not in self._tables:
            rows = self._rows[reports]
            workers: Iterable[str] = rows.news if partial else rows.encoded
            if model:
                workers = [
                    worker_id for worker_id in workers if model in rows.models[worker_id] or worker_id in rows.lost
                ]
            head = router_pb2.RouteTable()
            head.CopyFrom(self.table)
            del head.routes[:]
            head.partial = partial
            if reports:
                head.picking.CopyFrom(self._picking())
            gone = [router_pb2.Route(worker_id=name).SerializeToString() for name in rows.left] if partial else []
            self._tables[key] = head.SerializeToString() + b"".join(
                _field(encoded) for encoded in (*(rows.encoded[worker_id] for worker_id in workers), *gone)
            )
        return self._tables[key]

    def _picking(self) -> router_pb2.Picking:
        settings = self._settings
        chosen = {*self._splits, *settings.cascades, *settings.fallbacks}
        chosen |= {name for name, to in settings.aliases.items() if to in chosen}
        if settings.default_model in chosen:
            chosen.add("")
        picking = router_pb2.Picking(
            aliases={name: to for name, to in settings.aliases.items() if name not in chosen},
            ask_router=sorted(chosen),
            default_model=settings.default_model if "" not in chosen else "",
            parameters=self._main.parameters(),
            theta=settings.theta,
        )
        picking.ttl.FromTimedelta(settings.ttl)
        return picking


_ROUTES_TAG = bytes([router_pb2.RouteTable.ROUTES_FIELD_NUMBER << 3 | 2])


def _field(encoded: bytes) -> bytes:
    """A row as a field of a table."""
    size, length = bytearray(), len(encoded)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return _ROUTES_TAG + bytes(size) + encoded


def _mark(route: router_pb2.Route) -> bytes:
    plain = router_pb2.Route()
    plain.CopyFrom(route)
    plain.ClearField("age")
    return bytes(plain.SerializeToString())


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
