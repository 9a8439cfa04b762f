"""The fleet as the router sees it, at /metrics. Made from the scoreboard when asked, so no dead worker leaves a series."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ladr.routing.router import Router
from services.router.routes import Routes
from services.router.scaling import Scaling


class RouterCollector(Collector):
    """Reads the newest table; it is replaced whole each tick, so the scraping thread sees one moment."""

    def __init__(self, router: Router, routes: Routes, scaling: Scaling) -> None:
        self._router = router
        self._routes = routes
        self._scaling = scaling

    def collect(self) -> Iterable[Metric]:
        table = self._routes.table
        yield GaugeMetricFamily(
            "ladr_router_degraded", "1 while no reports come and own counts decide", value=float(table.degraded)
        )
        yield GaugeMetricFamily("ladr_router_open_streams", "Generate streams that are open", value=self._router.open)
        yield GaugeMetricFamily(
            "ladr_router_waiting", "Requests that wait here for a free worker", value=self._router.binder.waiting
        )
        eligible = sum(not route.ineligible_reason for route in table.routes)
        workers = GaugeMetricFamily(
            "ladr_router_workers", "Workers known, by whether they get requests", labels=["eligible"]
        )
        workers.add_metric(["yes"], eligible)
        workers.add_metric(["no"], len(table.routes) - eligible)
        yield workers
        weight = GaugeMetricFamily("ladr_router_weight_ratio", "Share of new requests", labels=["worker"])
        queue = GaugeMetricFamily("ladr_router_queue", "Smoothed requests at the worker", labels=["worker"])
        latency = GaugeMetricFamily("ladr_router_latency_seconds", "Smoothed time to first token", labels=["worker"])
        in_flight = GaugeMetricFamily("ladr_router_in_flight", "This router's open requests", labels=["worker"])
        for route in table.routes:
            weight.add_metric([route.worker_id], route.weight)
            queue.add_metric([route.worker_id], route.queue)
            if route.HasField("latency"):
                latency.add_metric([route.worker_id], route.latency.ToTimedelta().total_seconds())
            if row := self._router.board.get(route.worker_id):
                in_flight.add_metric([route.worker_id], row.in_flight)
        yield from (weight, queue, latency, in_flight)
        yield from self._scale()

    def _scale(self) -> Iterable[Metric]:
        wanted = GaugeMetricFamily(
            "ladr_router_scale_wanted_workers", "Workers that the load asks for", labels=["model"]
        )
        waiting = GaugeMetricFamily(
            "ladr_router_scale_waiting_seconds", "Work that waits, as seconds of the fleet", labels=["model"]
        )
        misses = GaugeMetricFamily(
            "ladr_router_scale_slo_miss_ratio", "Share of recent first tokens that came too late", labels=["model"]
        )
        variation = GaugeMetricFamily(
            "ladr_router_scale_score_variation_ratio", "Deviation of the workers' costs ÷ their mean", labels=["model"]
        )
        for model, advice in list(self._scaling.advice.items()):
            wanted.add_metric([model], advice.wanted_workers)
            waiting.add_metric([model], advice.waiting.ToTimedelta().total_seconds())
            misses.add_metric([model], advice.slo_miss_ratio)
            variation.add_metric([model], advice.score_variation)
        yield from (wanted, waiting, misses, variation)
