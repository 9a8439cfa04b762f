"""The bus's own numbers at /metrics; read when asked for, none with a worker's name."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.metrics.bus import Bus
from services.metrics.servicer import MetricsBusServicer


class BusCollector(Collector):
    """Sizes of the bus, reports it was given, and whether its store answers."""

    def __init__(self, bus: Bus, servicer: MetricsBusServicer) -> None:
        self._bus = bus
        self._servicer = servicer

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("ladr_bus_workers", "Workers that are there", len(self._bus.fleet))
        yield GaugeMetricFamily("ladr_bus_subscribers", "Subscribe streams that are open", self._servicer.subscribers)
        yield CounterMetricFamily("ladr_bus_reports", "Reports that workers gave this instance", self._bus.reports)
        yield GaugeMetricFamily("ladr_bus_degraded", "1 while the store does not answer", int(self._bus.degraded))
