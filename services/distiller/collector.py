"""The Distiller's own figures at /metrics, read when somebody asks. A label is a state, a device or a fixed word."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.distiller.dispatcher import Dispatcher
from services.distiller.progress import newest
from services.distiller.store import Store

PARTS = ("total", "task", "kl", "attention", "hidden", "refusal")  # of a loss; others are not told here


class DistillerCollector(Collector):
    """Jobs by state, and how far those are that run, by their first device."""

    def __init__(self, store: Store, dispatcher: Dispatcher, watchers: Callable[[], int]) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._watchers = watchers

    def collect(self) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("ladr_distill_jobs", "Jobs, by state", labels=["state"])
        for state, count in self._store.states.items():
            jobs.add_metric([state], count)
        yield jobs
        yield GaugeMetricFamily("ladr_distill_watchers", "WatchDistillJob streams that are open", self._watchers())
        phase = GaugeMetricFamily("ladr_distill_phase", "Phase of the running job, as DistillPhase", labels=["device"])
        step = GaugeMetricFamily("ladr_distill_step", "Steps of the phase that are done", labels=["device"])
        steps = GaugeMetricFamily("ladr_distill_steps", "Steps of the phase in all; 0: not known", labels=["device"])
        pace = GaugeMetricFamily("ladr_distill_tokens_per_second", "Tokens trained on a second", labels=["device"])
        memory = GaugeMetricFamily("ladr_distill_memory_bytes", "Memory of the trainer", labels=["device"])
        loss = GaugeMetricFamily("ladr_distill_loss", "Mean losses since the last progress", labels=["device", "part"])
        for job_id, running in self._dispatcher.running.items():
            progress, device = newest(self._dispatcher.place(job_id)), running.devices[0]
            if progress is None:
                continue
            phase.add_metric([device], progress.phase)
            step.add_metric([device], progress.step)
            steps.add_metric([device], progress.total_steps)
            pace.add_metric([device], progress.tokens_per_second)
            memory.add_metric([device], progress.memory_bytes)
            for part in PARTS:
                if part in progress.losses:
                    loss.add_metric([device, part], progress.losses[part])
        yield from (phase, step, steps, pace, memory, loss)
