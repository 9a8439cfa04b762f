"""What is known of one life of a worker. Pure: time comes in, values go out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ladr.routing.ema import Ema
from ladr.routing.health import Breaker, Record
from ladr.v1 import fleet_pb2, generation_pb2

if TYPE_CHECKING:
    from ladr.routing.lease import Lease

MAX_SAMPLE_S = 86_400.0  # a longer latency is a mistake of its reporter
STALLED_S = 1.0  # a worker whose event loop is so far behind does not serve
MAX_UNTOLD = 1024
MAX_REQUESTS = 1_000_000  # at a worker; more is a mistake of its reporter
_HERE = (fleet_pb2.MODEL_STATE_LOADING, fleet_pb2.MODEL_STATE_READY)


class Row:
    """One incarnation of a worker: a `policy.Candidate`, and whether it is in a state to serve.

    Its depth is counted like this: what the worker said last of itself, and of this router's own sends and ends those that it
    cannot have known of then.

    Args: renew: told when something changed by which it may or may not get requests.
    """

    __slots__ = (
        "__weakref__",
        "_acceptance",
        "_draining_at",
        "_edge",
        "_ends",
        "_failing",
        "_finishing",
        "_generating",
        "_latency",
        "_pace",
        "_queue",
        "_renew",
        "_revision",
        "_sends",
        "_stages",
        "breaker",
        "depth",
        "failed_s",
        "gone",
        "heard_s",
        "in_flight",
        "joined_s",
        "known",
        "leases",
        "models",
        "own_prompt_tokens",
        "own_tokens",
        "ready",
        "record",
        "report",
        "reported",
        "sent_tokens",
        "slots",
        "worker_id",
    )

    def __init__(
        self, report: fleet_pb2.WorkerReport, theta: float, renew: Callable[[], object] = lambda: None
    ) -> None:
        self._renew = renew
        self.worker_id = report.worker_id
        self.report = report
        self.slots = min(max(report.slots, 1), MAX_REQUESTS)
        self.heard_s = 0.0
        self.joined_s = float("-inf")  # when it came, or came back after a failure
        self.in_flight = 0
        self.depth = 0
        self.reported = 0
        self.own_tokens = 0.0
        self.own_prompt_tokens = 0.0
        self.sent_tokens = 0.0
        self.leases: set[Lease] = set()
        self.known: frozenset[str] = frozenset()  # served names, in any state
        self.models: frozenset[str] = frozenset()  # those that are ready
        self.ready = False  # by its own word, and its event loop runs
        self.gone = False  # the bus said so
        self.failed_s = float("-inf")  # when it did not answer
        self.breaker = Breaker()
        self.record = Record()
        self._draining_at = -1  # sequence number of the newest report when it refused a request as draining
        self._revision = 0
        self._sends: deque[tuple[float, int]] = deque()  # (when, prompt tokens) of those that it has not told of yet
        self._ends: deque[float] = deque()
        self._latency = Ema(theta)
        self._pace = Ema(theta)
        self._queue = Ema(theta)
        self._generating = Ema(theta)
        self._finishing = Ema(theta)
        self._failing = Ema(theta)
        self._acceptance = Ema(theta)
        self._stages = Ema(theta)
        self._edge = Ema(theta)

    def hear(self, report: fleet_pb2.WorkerReport, heard_s: float) -> None:
        """Take a newer report of this incarnation, heard at `heard_s`."""
        old = self.report if report is not self.report else fleet_pb2.WorkerReport()
        self._add_mean(self._latency, old.time_to_first_token, report.time_to_first_token, heard_s)
        self._add_mean(self._pace, old.time_per_output_token, report.time_per_output_token, heard_s)
        self._queue.add(report.running + report.queued, heard_s)
        self._generating.add(report.tokens_per_second, heard_s)
        gap_s = heard_s - self.heard_s
        if old.sequence and gap_s > 0:
            self._finishing.add((report.finished_total - old.finished_total) / gap_s, heard_s)
            self._failing.add((report.failed_total - old.failed_total) / gap_s, heard_s)
        drafted = report.drafting.drafted_tokens - old.drafting.drafted_tokens
        if drafted > 0:
            self._acceptance.add((report.drafting.accepted_tokens - old.drafting.accepted_tokens) / drafted, heard_s)
        if report.stages:
            self._stages.add(_stages_s(old, report), heard_s)
        self.report = report
        self.slots = min(max(report.slots, 1), MAX_REQUESTS)
        self.known = frozenset(m.name for m in report.models if m.state in _HERE)
        self.models = frozenset(m.name for m in report.models if m.state == fleet_pb2.MODEL_STATE_READY)
        lag_s = report.loop_lag.seconds + report.loop_lag.nanos / 1e9
        self.ready = report.state == fleet_pb2.WORKER_STATE_READY and lag_s <= STALLED_S
        self.heard_s = heard_s
        self.gone = False
        self._told(report.running + report.queued, report.load_revision, heard_s, heard_s)

    def load(self, load: generation_pb2.Load, sent_s: float, now_s: float) -> None:
        """Take the load that came with a message; what was sent after `sent_s` was not there yet when it was made."""
        self._told(load.running + load.queued, load.revision, sent_s, now_s)

    def started(self, took_s: float, now_s: float) -> None:
        """A request was taken there, `took_s` after it was sent."""
        self._edge.add(took_s, now_s)

    def sends(self, prompt_tokens: int, answer_tokens: float, now_s: float) -> None:
        """A request of this router goes there."""
        self.in_flight += 1
        self.own_prompt_tokens += prompt_tokens
        self.own_tokens += prompt_tokens + answer_tokens
        self.sent_tokens += prompt_tokens
        self._sends.append((now_s, prompt_tokens))
        self._count()

    def reads(self, prompt_tokens: int) -> None:
        """The first token of a request came: its prompt is read."""
        self.own_prompt_tokens -= prompt_tokens
        self.own_tokens -= prompt_tokens

    def ends(self, prompt_tokens: int, answer_tokens: float, told: bool, now_s: float) -> None:
        """A request of this router is over there; `told`: the worker's newest word has it so already."""
        self.in_flight -= 1
        self.own_prompt_tokens -= prompt_tokens
        self.own_tokens -= prompt_tokens + answer_tokens
        if not told:
            self._ends.append(now_s)
        if len(self._ends) > MAX_UNTOLD and self._sends:  # it has not said anything for long: an end meets its send
            self._ends.popleft()
            self.sent_tokens -= self._sends.popleft()[1]
        self._count()

    def _told(self, requests: int, revision: int, sends_until_s: float, ends_until_s: float) -> None:
        """The worker says how many requests it has; it knows of sends and ends up to these times.

        An older word than the newest is dropped: reports travel by the bus, loads come straight.
        """
        if revision < self._revision:
            return
        self._revision = revision
        self.reported = min(requests, MAX_REQUESTS)
        while self._sends and self._sends[0][0] <= sends_until_s:
            self.sent_tokens -= self._sends.popleft()[1]
        while self._ends and self._ends[0] <= ends_until_s:
            self._ends.popleft()
        self._count()

    def _count(self) -> None:
        self.depth = max(self.reported + self.sent, self.in_flight)

    @property
    def sent(self) -> int:
        """Sends less ends of this router since the worker's newest word."""
        return len(self._sends) - len(self._ends)

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
    def tokens_per_s(self) -> float:
        return self._generating.value or 0.0

    @property
    def finished_per_s(self) -> float:
        return self._finishing.value or 0.0

    @property
    def failed_per_s(self) -> float:
        return self._failing.value or 0.0

    @property
    def kv_used(self) -> float | None:
        return self.report.kv_used_ratio if self.report.HasField("kv_used_ratio") else None

    @property
    def queued_tokens(self) -> float:
        return float(self.report.queued_prompt_tokens)

    @property
    def draft_acceptance(self) -> float | None:
        return self._acceptance.value

    @property
    def stage_s(self) -> float:
        return self._stages.value or 0.0

    @property
    def edge_s(self) -> float:
        return self._edge.value or 0.0

    @property
    def key(self) -> tuple[str, str]:
        return (self.worker_id, self.report.incarnation)

    def unreachable(self, now_s: float) -> None:
        """The connection to it failed: leave it alone until it is heard again, and longer each time it is tried in vain."""
        self.failed_s = now_s
        self.breaker.failed(now_s, tolerated=0)
        self.record.add(True, now_s)
        self._renew()

    def broke(self, now_s: float) -> None:
        """Its engine failed on a request: once may be the request's fault, in a row it is the worker's."""
        self.breaker.failed(now_s)
        self.record.add(True, now_s)
        self._renew()

    def served(self, now_s: float) -> None:
        """A first token came from it."""
        if self.breaker.half_open:
            self.joined_s = now_s
            self._renew()
        self.breaker.succeeded()
        self.record.add(False, now_s)

    def lacks(self, model: str) -> None:
        """It says that it does not serve a model after all: believe it until its next report."""
        self.models -= {model}
        self._renew()

    def drains(self, yes: bool = True) -> None:
        """It drains, as its next report will say too; or no longer."""
        self._draining_at = self.report.sequence if yes else -1
        self._renew()

    @property
    def draining(self) -> bool:
        return self._draining_at >= self.report.sequence

    def _add_mean(
        self, ema: Ema, before: fleet_pb2.LatencyTotals, after: fleet_pb2.LatencyTotals, now_s: float
    ) -> None:
        if after.count > before.count:
            sample_s = (_seconds(after) - _seconds(before)) / (after.count - before.count)
            if 0 <= sample_s <= MAX_SAMPLE_S:
                ema.add(sample_s, now_s)


def _stages_s(old: fleet_pb2.WorkerReport, new: fleet_pb2.WorkerReport) -> float:
    """Seconds that a request spent in all stages together, between two reports."""
    before = {stage.name: stage.latency for stage in old.stages}
    total_s = 0.0
    for stage in new.stages:
        earlier = before.get(stage.name, fleet_pb2.LatencyTotals())
        count = stage.latency.count - earlier.count
        if count > 0:
            total_s += max(0.0, _seconds(stage.latency) - _seconds(earlier)) / count
    return total_s


def _seconds(totals: fleet_pb2.LatencyTotals) -> float:
    return totals.sum.seconds + totals.sum.nanos / 1e9
