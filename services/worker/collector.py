"""The worker's own figures at /metrics, read from the worker when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from services.worker.gpus import Gpus
from services.worker.worker import Worker


class WorkerCollector(Collector):
    """No series outlives what it tells of, and no label holds a client's text."""

    def __init__(self, worker: Worker, gpus: Gpus) -> None:
        self._worker = worker
        self._gpus = gpus

    def collect(self) -> Iterable[Metric]:
        worker = self._worker
        report = worker.report(0)
        yield GaugeMetricFamily("ladr_worker_slots", "Requests that can run at once", value=report.slots)
        yield GaugeMetricFamily("ladr_worker_running", "Requests running", value=report.running)
        yield GaugeMetricFamily("ladr_worker_queued", "Requests waiting for a slot", value=report.queued)
        yield GaugeMetricFamily(
            "ladr_worker_tokens_per_second", "Tokens generated a second", value=report.tokens_per_second
        )
        yield GaugeMetricFamily(
            "ladr_worker_loop_lag_seconds",
            "How far the event loop is behind",
            value=report.loop_lag.ToTimedelta().total_seconds(),
        )
        if report.HasField("kv_used_ratio"):
            yield GaugeMetricFamily("ladr_worker_kv_used_ratio", "Key-value cache in use", value=report.kv_used_ratio)
        if report.HasField("drafting"):
            drafted = CounterMetricFamily("ladr_worker_draft_tokens", "Tokens drafted, by fate", labels=["fate"])
            drafted.add_metric(["accepted"], report.drafting.accepted_tokens)
            drafted.add_metric(["rejected"], report.drafting.drafted_tokens - report.drafting.accepted_tokens)
            yield drafted
            yield GaugeMetricFamily(
                "ladr_worker_draft_paused", "1 while the draft is left out, since it loses time", report.drafting.paused
            )
        counts = worker.stats.counts()
        yield CounterMetricFamily("ladr_worker_tokens", "Tokens generated", value=counts.tokens)
        ended = CounterMetricFamily("ladr_worker_requests", "Requests that ended, by how", labels=["outcome"])
        for outcome in ("finished", "failed", "cancelled"):
            ended.add_metric([outcome], getattr(counts, outcome))
        yield ended
        for name, text, totals in (
            ("time_to_first_token", "Arrival to first token", counts.time_to_first_token),
            ("time_per_output_token", "Between two tokens of an answer", counts.time_per_output_token),
            ("end_to_end", "Arrival to last token", counts.end_to_end),
        ):
            yield SummaryMetricFamily(
                f"ladr_worker_{name}_seconds", text, count_value=totals.count, sum_value=totals.sum_s
            )
        memory = GaugeMetricFamily("gpu_memory_used_bytes", "GPU memory in use, from NVML", labels=["gpu"])
        for gpu in self._gpus.memory():
            memory.add_metric([str(gpu.index)], gpu.used_bytes)
        yield memory
