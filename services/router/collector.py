"""The fleet as the router sees it, at /metrics. Made from the scoreboard when asked, so no dead worker leaves a series."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ladr.routing.router import Router
from services.router.routes import Routes


class RouterCollector(Collector):
    """Reads the newest table; it is replaced whole each tick, so the scraping thread sees one moment."""

    def __init__(self, router: Router, routes: Routes) -> None:
        self._router = router
        self._routes = routes

    def collect(self) -> Iterable[Metric]:
        table = self._routes.table
        yield GaugeMetricFamily(
            "ladr_router_degraded", "1 while no reports come and own counts decide", value=float(table.degraded)
        )
        yield GaugeMetricFamily("ladr_router_open_streams", "Generate streams that are open", value=self._router.open)
        yield GaugeMetricFamily(
            "ladr_router_waiting", "Requests that wait here for a free worker", value=self._router.waiting
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
