"""The fleet as a router sees it: one row an incarnation, and which may get a request. Pure: time comes in, decisions go out."""

from __future__ import annotations

from collections.abc import Callable

from ladr.routing import health
from ladr.routing.row import Row
from ladr.v1 import fleet_pb2, metrics_pb2

MAX_ROWS = 8192
BLIND_S = 0.5  # without an update for so long the bus is as good as lost: it promises one every 200 ms
FORGET_S = 30.0  # how long a silent worker is still listed
_STATES = {
    fleet_pb2.WORKER_STATE_READY: "",
    fleet_pb2.WORKER_STATE_STARTING: "starting",
    fleet_pb2.WORKER_STATE_DRAINING: "draining",
    fleet_pb2.WORKER_STATE_STOPPED: "stopped",
}


class Scoreboard:
    """All rows. `now_s` is monotonic seconds throughout.

    Silence counts against a worker only while the board listens. Without updates from a bus it is `blind` and the fleet
    stands as it was; once updates come again, each worker has a full TTL to be heard.
    """

    def __init__(
        self,
        theta: float,
        ttl_s: float,
        slow_start_s: float = 0.0,
        forget_s: float = FORGET_S,
        changed: Callable[[Row], object] = lambda row: None,
    ) -> None:
        self._theta = theta
        self._ttl_s = ttl_s
        self._slow_start_s = slow_start_s
        self._forget_s = forget_s
        self._changed = changed  # told each row that has news
        self._rows: dict[str, Row] = {}
        self._updated_s = float("-inf")
        self._listening_since_s = float("inf")
        self._models: frozenset[str] | None = None  # until something changes
        self._eligible: dict[str, tuple[list[Row], bool]] = {}  # by model, good until _eligible_until_s
        self._eligible_until_s = float("-inf")

    def hear(self, update: metrics_pb2.FleetUpdate, now_s: float) -> None:
        """Take an update of the bus. A worker that is not in it stands; `gone` and silence alone take one away."""
        if self.blind(now_s):
            self._listening_since_s = now_s
        if update.degraded:  # the bus misses what the other buses hear, so that silence means nothing
            self._listening_since_s = now_s
        self._updated_s = now_s
        self.renew()
        for entry in update.workers:
            self._hear(entry.report, now_s - entry.age.ToTimedelta().total_seconds(), now_s)
        for gone in update.gone:
            row = self._rows.get(gone.worker_id)
            if row and row.report.incarnation == gone.incarnation:
                row.gone = True
                _revoke(row)

    def lost(self) -> None:
        """The stream of updates broke."""
        self._updated_s = float("-inf")
        self.renew()

    def renew(self) -> None:
        """Something changed by which a worker may or may not get requests: look at all of them again."""
        self._eligible_until_s = float("-inf")
        self._models = None

    def _hear(self, report: fleet_pb2.WorkerReport, heard_s: float, now_s: float) -> None:
        row = self._rows.get(report.worker_id)
        if row and row.report.incarnation == report.incarnation:
            if report.sequence > row.report.sequence:
                if self._silent(row, now_s):
                    row.joined_s = now_s
                row.hear(report, heard_s)
                self._changed(row)
            elif report.sequence == row.report.sequence:
                row.heard_s = max(row.heard_s, heard_s)
            return
        if row and row.report.incarnation > report.incarnation and not self._silent(row, now_s):
            return  # an older life, told late; after a silence it is a new one whose host's clock is behind
        if row:
            _revoke(row)
        elif len(self._rows) >= MAX_ROWS and not self._make_room(now_s):
            return
        row = self._rows[report.worker_id] = Row(report, self._theta, self.renew)
        row.joined_s = now_s
        row.hear(report, heard_s)
        self._changed(row)

    def _make_room(self, now_s: float) -> bool:
        """Forget the silent worker that was heard longest ago, if there is one."""
        silent = [row for row in self._rows.values() if not row.in_flight and self._silent(row, now_s)]
        if silent:
            del self._rows[min(silent, key=lambda row: row.heard_s).worker_id]
        return bool(silent)

    def blind(self, now_s: float) -> bool:
        """No updates come: what the board holds is old, and the router goes by its own counts."""
        return now_s - self._updated_s > BLIND_S

    def age_s(self, row: Row, now_s: float) -> float:
        """Seconds since the worker was heard."""
        return now_s - row.heard_s

    def ineligible(self, row: Row, now_s: float) -> str:
        """Why a worker may get no request now; empty if it may."""
        if row.draining:
            return "draining"
        reason = _STATES.get(row.report.state, "starting")
        if reason:
            return reason
        if self._silent(row, now_s):
            return "silent"
        if row.failed_s >= row.heard_s and not self.blind(now_s):
            return "unreachable"
        if not row.breaker.allows(now_s):
            return "broken"
        if now_s < row.record.ejected_until_s:
            return "ejected"
        if not row.ready:
            return "stalled"
        return ""

    def _silent(self, row: Row, now_s: float) -> bool:
        return row.gone or (not self.blind(now_s) and self._unheard_s(row, now_s) > self._ttl_s)

    def _unheard_s(self, row: Row, now_s: float) -> float:
        """For how long the board has listened without hearing of the worker."""
        return now_s - max(row.heard_s, self._listening_since_s)

    def eligible(self, model: str, now_s: float) -> list[Row]:
        """Workers that may get a request for a served name now: those for which `ineligible` says nothing.

        A worker that is new, or was away, starts slowly: while others are warm it gets no more open requests of this router
        than its share of the time that it has to warm up.
        """
        if now_s >= self._eligible_until_s:
            self._eligible = {}
            self._eligible_until_s = self._good_until_s(now_s)
        found = self._eligible.get(model)
        if found is None:
            rows = [row for row in self._rows.values() if model in row.models and not self.ineligible(row, now_s)]
            warm_s = now_s - self._slow_start_s
            steady = not any(row.joined_s > warm_s or row.breaker.half_open for row in rows)
            found = self._eligible[model] = (rows, steady)
        rows, steady = found
        return rows if steady else self._held_back(rows, now_s)

    def _held_back(self, rows: list[Row], now_s: float) -> list[Row]:
        """Without those that have as much as they may while they warm up, unless all are that new, or are on probation."""
        rows = [row for row in rows if row.breaker.allows(now_s)]
        warm_s = now_s - self._slow_start_s
        if all(row.joined_s > warm_s for row in rows):
            return rows
        return [
            row
            for row in rows
            if row.joined_s <= warm_s
            or row.in_flight < max(1.0, row.slots * (now_s - row.joined_s) / self._slow_start_s)
        ]

    def _good_until_s(self, now_s: float) -> float:
        """Until when time alone changes nothing about who is eligible."""
        until_s = now_s + BLIND_S
        if not self.blind(now_s):
            until_s = self._updated_s + BLIND_S
        for row in self._rows.values():
            for change_s in (
                max(row.heard_s, self._listening_since_s) + self._ttl_s,
                row.breaker.retry_s,
                row.record.ejected_until_s,
            ):
                if now_s < change_s < until_s:
                    until_s = change_s
        return until_s

    def rows(self) -> list[Row]:
        """Every row, by worker name."""
        return [row for _, row in sorted(self._rows.items())]

    def get(self, worker_id: str) -> Row | None:
        return self._rows.get(worker_id)

    def addresses(self) -> set[str]:
        """Where the listed workers are."""
        return {row.report.address for row in self._rows.values()}

    def knows(self, model: str) -> bool:
        """Whether a listed worker has a model of this name, ready or not."""
        return model in self.models()

    def models(self) -> frozenset[str]:
        """Every name that a listed worker has, ready or not."""
        if self._models is None:
            self._models = frozenset().union(*(row.known for row in self._rows.values()))
        return self._models

    def sweep(self, now_s: float) -> None:
        """Send the requests of silent workers elsewhere, eject outliers, and forget workers long silent."""
        if health.eject({row: row.record for row in self._rows.values() if row.ready}, now_s):
            self.renew()
        if self.blind(now_s):
            return
        for row in list(self._rows.values()):
            if self.ineligible(row, now_s) == "silent":
                _revoke(row)
            if self._unheard_s(row, now_s) > self._forget_s and not row.in_flight:
                del self._rows[row.worker_id]
                self.renew()


def _revoke(row: Row) -> None:
    for lease in list(row.leases):
        lease.revoke()
