"""What the jobs tell of themselves, as metrics and log lines."""

from __future__ import annotations

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from services.router.jobs.machine import STATES, Job
from services.router.jobs.store import Census

log = structlog.get_logger()


class JobsMetrics:
    """Counts in a registry. Gauges are of the whole store, and alike at every router that has it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"ladr_jobs{name}", about, labels, registry=registry)

        self._states = gauge("", "Jobs in the store, by state", "state")
        self._depth = gauge("_depth", "Jobs that wait for a worker or run: what a fleet is to be scaled by")
        self._oldest = gauge("_oldest_seconds", "Age of the oldest job that waits for a worker; 0: none waits")
        self._up = gauge("_store_up", "1 while the store answers")
        self._here = gauge("_running_here", "Jobs that this router runs")
        self._attempts = Counter(
            "ladr_jobs_attempts", "Attempts that ended here, by how", ["outcome"], registry=registry
        )
        self._redeliveries = Counter(
            "ladr_jobs_redeliveries", "Attempts begun here since the one before was lost", registry=registry
        )
        for state in STATES:
            self._states.labels(state)

    def counted(self, census: Census, now_ms: int) -> None:
        """What the store holds now."""
        for state, count in census.states.items():
            self._states.labels(state).set(count)
        self._depth.set(census.states["queued"] + census.states["running"])
        self._oldest.set(max(0, now_ms - census.oldest_ms) / 1000 if census.oldest_ms else 0)

    def store(self, up: bool) -> None:
        """Whether the store answers."""
        self._up.set(up)

    def running(self, count: int) -> None:
        self._here.set(count)

    def began(self, job: Job, lost: bool) -> None:
        """An attempt begins. `lost`: the one before was."""
        if lost:
            self._redeliveries.inc()
            log.info("job_redelivered", job=job.id, attempt=job.attempts)

    def ended(self, job: Job, outcome: str, reason: str = "") -> None:
        """An attempt ended: succeeded, failed, given_back or stale."""
        self._attempts.labels(outcome).inc()
        if outcome != "succeeded":
            log.info("job_attempt", job=job.id, attempt=job.attempts, outcome=outcome, reason=reason)
