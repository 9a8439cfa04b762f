"""Roll-outs at /metrics: how many there are in each state, and how far those are that go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.distiller.rollout.record import STATES
from services.distiller.rollout.store import RolloutStore


class RolloutCollector(Collector):
    """A label is a state, or the name of one of the few roll-outs that go on."""

    def __init__(self, store: RolloutStore, watchers: Callable[[], int]) -> None:
        self._store = store
        self._watchers = watchers

    def collect(self) -> Iterable[Metric]:
        counts = Counter(record.state for record in self._store.records.values())
        rollouts = GaugeMetricFamily("ladr_distill_rollouts", "Roll-outs, by state", labels=["state"])
        for state in STATES:
            rollouts.add_metric([state], counts[state])
        yield rollouts
        yield GaugeMetricFamily("ladr_distill_rollout_watchers", "WatchRollout streams that are open", self._watchers())
        share = GaugeMetricFamily("ladr_distill_rollout_share", "Share that the student has now", labels=["name"])
        stage = GaugeMetricFamily("ladr_distill_rollout_stage", "Stage of the roll-out, from 0", labels=["name"])
        for record in self._store.live:
            share.add_metric([record.split], record.share)
            stage.add_metric([record.split], record.stage)
        yield share
        yield stage
