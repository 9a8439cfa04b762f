"""What the router knows of each worker: one row an incarnation. Pure: time comes in, decisions go out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ladr.v1 import fleet_pb2, metrics_pb2
from services.router.ema import Ema

MAX_SAMPLE_S = 86_400.0  # a longer latency is a mistake of its reporter
MAX_ROWS = 8192
BLIND_S = 0.5  # without an update for so long the bus is as good as lost: it promises one every 200 ms
STALLED_S = 1.0  # a worker whose event loop is so far behind does not serve
FORGET_S = 30.0  # how long a silent worker is still listed
_BACKOFF_S = (0.2, 5.0)  # first and longest time that a worker that fails is left alone
_HERE = (fleet_pb2.MODEL_STATE_LOADING, fleet_pb2.MODEL_STATE_READY)
_STATES = {
    fleet_pb2.WORKER_STATE_READY: "",
    fleet_pb2.WORKER_STATE_STARTING: "starting",
    fleet_pb2.WORKER_STATE_DRAINING: "draining",
    fleet_pb2.WORKER_STATE_STOPPED: "stopped",
}


class Row:
    """One incarnation of a worker. A `policies.Candidate`."""

    __slots__ = (
        "_draining_at",
        "_latency",
        "_pace",
        "_queue",
        "failed_s",
        "failures",
        "gone",
        "heard_s",
        "in_flight",
        "known",
        "leases",
        "models",
        "ready",
        "report",
        "retry_s",
        "sent",
        "worker_id",
    )

    def __init__(self, report: fleet_pb2.WorkerReport, theta: float) -> None:
        self.worker_id = report.worker_id
        self.report = report
        self.heard_s = 0.0
        self.in_flight = 0  # open requests of this router
        self.sent = 0  # of those, sent since the newest report
        self.leases: set[Lease] = set()
        self.known: frozenset[str] = frozenset()  # served names, in any state
        self.models: frozenset[str] = frozenset()  # those that are ready
        self.ready = False  # by its own word, and its event loop runs
        self.gone = False  # the bus said so
        self.failures = 0  # failures in a row
        self.failed_s = float("-inf")
        self.retry_s = float("-inf")
        self._draining_at = -1  # sequence number of the newest report when it refused a request as draining
        self._latency = Ema(theta)
        self._pace = Ema(theta)
        self._queue = Ema(theta)

    def hear(self, report: fleet_pb2.WorkerReport, heard_s: float) -> None:
        """Take a newer report of this incarnation, heard at `heard_s`."""
        old = self.report if report is not self.report else fleet_pb2.WorkerReport()
        for ema, before, after in (
            (self._latency, old.time_to_first_token, report.time_to_first_token),
            (self._pace, old.time_per_output_token, report.time_per_output_token),
        ):
            if after.count > before.count:
                sample_s = (_seconds(after) - _seconds(before)) / (after.count - before.count)
                if 0 <= sample_s <= MAX_SAMPLE_S:
                    ema.add(sample_s, heard_s)
        self._queue.add(report.running + report.queued, heard_s)
        self.report = report
        self.known = frozenset(m.name for m in report.models if m.state in _HERE)
        self.models = frozenset(m.name for m in report.models if m.state == fleet_pb2.MODEL_STATE_READY)
        lag_s = report.loop_lag.seconds + report.loop_lag.nanos / 1e9
        self.ready = report.state == fleet_pb2.WORKER_STATE_READY and lag_s <= STALLED_S
        self.heard_s = heard_s
        self.gone = False
        self.sent = 0

    @property
    def queue(self) -> float:
        """Smoothed requests there with those sent since the report; never under this router's own open ones."""
        return max((self._queue.value or 0.0) + self.sent, float(self.in_flight))

    @property
    def latency_s(self) -> float | None:
        return self._latency.value

    @property
    def pace_s(self) -> float | None:
        return self._pace.value

    @property
    def slots(self) -> int:
        return self.report.slots

    @property
    def key(self) -> tuple[str, str]:
        return (self.worker_id, self.report.incarnation)

    def unreachable(self, now_s: float) -> None:
        """The connection to it failed: leave it alone until it is heard again, and longer each time it is tried in vain."""
        self.failed_s = now_s
        self._back_off(now_s)

    def broke(self, now_s: float) -> None:
        """Its engine failed before the first token: once may be the request's fault, in a row it is the worker's."""
        if self.failures:
            self._back_off(now_s)
        self.failures = max(self.failures, 1)

    def lacks(self, model: str) -> None:
        """It says that it does not serve a model after all: believe it until its next report."""
        self.models -= {model}

    def served(self) -> None:
        """A token came from it."""
        self.failures = 0

    def _back_off(self, now_s: float) -> None:
        if now_s < self.retry_s:
            return  # requests that fail together are one failure
        first_s, longest_s = _BACKOFF_S
        self.retry_s = now_s + min(first_s * 2**self.failures, longest_s)
        self.failures = min(self.failures + 1, 16)

    def drains(self, yes: bool = True) -> None:
        """It drains, as its next report will say too; or no longer."""
        self._draining_at = self.report.sequence if yes else -1

    @property
    def draining(self) -> bool:
        return self._draining_at >= self.report.sequence


@dataclass(eq=False)
class Lease:
    """One request at one worker, released exactly once. `revoke` ends it from outside while it has no token yet."""

    row: Row
    first_token: bool = False
    revoked: bool = False
    cancel: Callable[[], object] = field(default=lambda: None)
    _sent_at: int = -1

    def __enter__(self) -> Lease:
        self.row.in_flight += 1
        self.row.sent += 1
        self.row.leases.add(self)
        self._sent_at = self.row.report.sequence
        return self

    def __exit__(self, *_: object) -> None:
        self.row.leases.remove(self)
        self.row.in_flight -= 1
        if self._sent_at == self.row.report.sequence:  # came and went between two reports
            self.row.sent -= 1

    def revoke(self) -> None:
        """The worker is gone; the request, if it has no token yet, shall go elsewhere."""
        if not self.first_token and not self.revoked:
            self.revoked = True
            self.cancel()


class Scoreboard:
    """All rows. `now_s` is monotonic seconds throughout.

    Silence counts against a worker only while the board listens. Without updates from a bus it is `blind` and the fleet
    stands as it was; once updates come again, each worker has a full TTL to be heard.
    """

    def __init__(self, theta: float, ttl_s: float, forget_s: float = FORGET_S) -> None:
        self._theta = theta
        self._ttl_s = ttl_s
        self._forget_s = forget_s
        self._rows: dict[str, Row] = {}
        self._updated_s = float("-inf")
        self._listening_since_s = float("inf")

    def hear(self, update: metrics_pb2.FleetUpdate, now_s: float) -> None:
        """Take an update of the bus. A worker that is not in it stands; `gone` and silence alone take one away."""
        if self.blind(now_s):
            self._listening_since_s = now_s
        if update.degraded:  # the bus misses what the other buses hear, so that silence means nothing
            self._listening_since_s = now_s
        self._updated_s = now_s
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

    def _hear(self, report: fleet_pb2.WorkerReport, heard_s: float, now_s: float) -> None:
        row = self._rows.get(report.worker_id)
        if row and row.report.incarnation == report.incarnation:
            if report.sequence > row.report.sequence:
                row.hear(report, heard_s)
            elif report.sequence == row.report.sequence:
                row.heard_s = max(row.heard_s, heard_s)
            return
        if row and row.report.incarnation > report.incarnation and not self._silent(row, now_s):
            return  # an older life, told late; after a silence it is a new one whose host's clock is behind
        if row:
            _revoke(row)
        elif len(self._rows) >= MAX_ROWS and not self._make_room(now_s):
            return
        row = self._rows[report.worker_id] = Row(report, self._theta)
        row.hear(report, heard_s)

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
        if now_s < row.retry_s or (row.failed_s >= row.heard_s and not self.blind(now_s)):
            return "unreachable"
        if not row.ready:
            return "stalled"
        return ""

    def _silent(self, row: Row, now_s: float) -> bool:
        return row.gone or (not self.blind(now_s) and self._unheard_s(row, now_s) > self._ttl_s)

    def _unheard_s(self, row: Row, now_s: float) -> float:
        """For how long the board has listened without hearing of the worker."""
        return now_s - max(row.heard_s, self._listening_since_s)

    def eligible(self, model: str, now_s: float) -> list[Row]:
        """Workers that may get a request for a served name now: those for which `ineligible` says nothing."""
        blind = self.blind(now_s)
        since_s = now_s - self._ttl_s
        silence_counts = not blind and self._listening_since_s < since_s
        return [
            row
            for row in self._rows.values()
            if model in row.models
            and row.ready
            and now_s >= row.retry_s
            and (blind or row.failed_s < row.heard_s)
            and not (silence_counts and row.heard_s < since_s)
            and not row.gone
            and not row.draining
        ]

    def rows(self) -> list[Row]:
        """Every row, by worker name."""
        return [row for _, row in sorted(self._rows.items())]

    def get(self, worker_id: str) -> Row | None:
        return self._rows.get(worker_id)

    def knows(self, model: str) -> bool:
        """Whether a listed worker has a model of this name, ready or not."""
        return any(model in row.known for row in self._rows.values())

    def models(self) -> set[str]:
        """Every name that a listed worker has, ready or not."""
        return set().union(*(row.known for row in self._rows.values()))

    def sweep(self, now_s: float) -> None:
        """Send the requests of silent workers elsewhere, and forget workers long silent."""
        if self.blind(now_s):
            return
        for row in list(self._rows.values()):
            if self.ineligible(row, now_s) == "silent":
                _revoke(row)
            if self._unheard_s(row, now_s) > self._forget_s and not row.in_flight:
                del self._rows[row.worker_id]


def _revoke(row: Row) -> None:
    for lease in list(row.leases):
        lease.revoke()


def _seconds(totals: fleet_pb2.LatencyTotals) -> float:
    return totals.sum.seconds + totals.sum.nanos / 1e9
