"""What the router tells of its requests, as metrics and log lines."""

from __future__ import annotations

import time
from collections import defaultdict

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from ladr.routing.sink import Sink
from ladr.routing.window import Window
from services.router.tally import Tally
from services.router.tuning.tuning import Outcomes

log = structlog.get_logger()

_NOT_SERVED = ("overloaded", "no_worker")  # the fleet's fault, not the client's
_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class RouterSink(Sink):
    """Counts in a registry; one line for what is out of the ordinary.

    Args: slo_s: a first token later than this is a miss.
    """

    def __init__(self, registry: CollectorRegistry, slo_s: float) -> None:
        self._slo_s = slo_s
        self.outcomes = Outcomes(slo_s)
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)  # by model
        self._slo: defaultdict[str, Window] = defaultdict(Window)  # (in time, late) by model

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"ladr_router_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str) -> Histogram:
            return Histogram(f"ladr_router_{name}_seconds", about, ["model"], buckets=_SECONDS, registry=registry)

        self._requests = counter("requests", "Requests that ended, by how", "model", "outcome")
        self._retries = counter("retries", "Further attempts before the first token, by why", "reason")
        self._resumes = counter("resumes", "Answers that another worker went on with, by why", "reason")
        self._taken_back = counter("taken_back", "Requests taken out of a worker's queue, to be picked for again")
        self._hedges = counter("hedges", "Second workers asked before the first token, by whether they won", "won")
        self._fallbacks = counter("fallbacks", "Requests that another model answered", "model", "to")
        self._judgements = counter("cascade_judgements", "Student answers, by what became of them", "model", "verdict")
        self._ttft = histogram("time_to_first_token", "Arrival at the router to the first token")
        self._edge = histogram("edge_latency", "The client's own way to the router, by its word")
        self._wait = histogram("wait", "Time that requests waited here for a free worker")

    def ended(self, model: str, outcome: str) -> None:
        self._requests.labels(model, outcome).inc()
        self.tallies[model].ended(outcome)
        if outcome in _NOT_SERVED:
            self.outcomes.add(None)

    def first_token(self, model: str, took_s: float, edge_s: float) -> None:
        self._ttft.labels(model).observe(took_s)
        self.tallies[model].first_token(took_s)
        self.outcomes.add(took_s)
        late = took_s > self._slo_s
        self._slo[model].add(not late, late, time.monotonic())
        if edge_s:
            self._edge.labels(model).observe(edge_s)

    def finished(self, model: str, took_s: float, tokens: int) -> None:
        self.tallies[model].finished(took_s, tokens)

    def misses(self, model: str, now_s: float) -> float:
        """Share of the first tokens of the last 10 s that missed the SLO."""
        in_time, late = self._slo[model].totals(now_s)
        return late / (in_time + late) if late else 0.0

    def waited(self, model: str, seconds: float) -> None:
        self._wait.labels(model).observe(seconds)

    def retried(self, worker_id: str, reason: str, attempt: int) -> None:
        self._retries.labels(reason.lower()).inc()
        log.info("retry", worker=worker_id, reason=reason, attempt=attempt)

    def resumed(self, worker_id: str, reason: str, tokens: int) -> None:
        self._resumes.labels(reason.lower()).inc()
        log.info("resume", worker=worker_id, reason=reason, tokens=tokens)

    def taken_back(self, worker_id: str) -> None:
        self._taken_back.inc()

    def hedged(self, won: bool) -> None:
        self._hedges.labels("yes" if won else "no").inc()

    def fell_back(self, model: str, to: str) -> None:
        self._fallbacks.labels(model, to).inc()
        log.info("fallback", model=model, to=to)

    def judged(self, model: str, confidence: float | None, escalated: bool) -> None:
        verdict = "unknown" if confidence is None else "escalated" if escalated else "kept"
        self._judgements.labels(model, verdict).inc()
