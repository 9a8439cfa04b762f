"""What the router counts of its requests, for /metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_TTFT_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class RouterStats:
    """Models are served names or "other": a client's text is never a label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "ladr_router_requests", "Requests that ended, by how", ["model", "outcome"], registry=registry
        )
        self._retries = Counter("ladr_router_retries", "Further attempts, by why", ["reason"], registry=registry)
        self._ttft = Histogram(
            "ladr_router_time_to_first_token_seconds",
            "Arrival at the router to the first token",
            ["model"],
            buckets=_TTFT_S,
            registry=registry,
        )

    def ended(self, model: str, outcome: str) -> None:
        self._requests.labels(model, outcome).inc()

    def retried(self, reason: str) -> None:
        self._retries.labels(reason).inc()

    def first_token(self, model: str, seconds: float) -> None:
        self._ttft.labels(model).observe(seconds)
