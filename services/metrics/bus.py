"""The bus without its wire: the fleet on a clock, and the updates that subscribers share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from ladr.config import MetricsSettings
from ladr.errors import Overloaded
from ladr.v1.fleet_pb2 import WorkerReport
from ladr.v1.metrics_pb2 import FleetUpdate
from services.metrics.backend import Backend
from services.metrics.fleet import Fleet

log = structlog.get_logger()

HEARTBEAT_S = 0.15  # between two updates of a quiet fleet; the contract says 200 ms
_SHARED_S = 0.01  # how long an update is shared: the ages in it are as much too low for the last who gets it
_SHARED = 4  # updates kept for sharing


@dataclass(frozen=True, slots=True)
class Update:
    """A serialized FleetUpdate, and the version that its reader then has."""

    data: bytes
    version: int
    made_s: float


class Bus:
    """Hears reports, from workers and from the backend, and tells by ticks that there is news.

    A tick comes at once after a change, though not within `update_interval` (150 ms at most) of the last, and after 150 ms
    without a change.
    """

    def __init__(
        self, settings: MetricsSettings, backend: Backend, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._interval_s = min(settings.update_interval.total_seconds(), HEARTBEAT_S)
        self._changed = asyncio.Event()
        self._shared: dict[int, Update] = {}
        self._full = False
        self._ttl_s = settings.ttl.total_seconds()
        self.fleet = Fleet(self._ttl_s, settings.max_workers)
        self.tick = asyncio.Event()
        self.reports = 0

    @property
    def degraded(self) -> bool:
        """Whether only what is heard here is told."""
        return self._backend.degraded

    def publish(self, report: WorkerReport) -> None:
        """Take a valid report from a worker, and pass it on if it is news.

        Raises: Overloaded: a worker too many.
        """
        self.reports += 1
        heard_s = self._clock()
        if self.fleet.hear(report, heard_s):
            self._backend.send(report, heard_s)
            self._changed.set()

    def update_since(self, version: int) -> Update:
        """What changed after `version` (0: all), for one more reader; readers that come at once share the bytes."""
        now_s = self._clock()
        update = self._shared.get(version)
        if update is None or now_s - update.made_s > _SHARED_S:
            if len(self._shared) >= _SHARED:
                self._shared.clear()
            update = self._shared[version] = self._make(version, now_s)
        return update

    def wake(self) -> None:
        """Tick now. `tick` is an event that is set once; the next one takes its place."""
        self._shared.clear()
        tick, self.tick = self.tick, asyncio.Event()
        tick.set()

    async def run(self) -> None:
        """Hear the backend, let silent workers go and tick, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._backend.run(self._hear))
            group.create_task(self._ticks())

    async def _ticks(self) -> None:
        told, told_s = (0, True), 0.0
        spare_until_s = float("-inf")
        while True:
            next_s = min(told_s + HEARTBEAT_S, self.fleet.next_expiry_s(self._clock() < spare_until_s))
            if not self._changed.is_set() and next_s > self._clock():
                try:
                    async with asyncio.timeout(next_s - self._clock()):
                        await self._changed.wait()
                except TimeoutError:
                    pass
            self._changed.clear()
            now_s = self._clock()
            if self.degraded:  # the others' workers have a TTL to be heard again once the backend is back
                spare_until_s = now_s + self._ttl_s
            self.fleet.expire(now_s, here_alone=now_s < spare_until_s)
            news = (self.fleet.version, self.degraded)
            if news != told or now_s >= told_s + HEARTBEAT_S:
                told, told_s = news, now_s
                self.wake()
                await asyncio.sleep(self._interval_s)

    def _hear(self, report: WorkerReport, heard_s: float) -> None:
        try:
            if self.fleet.hear(report, heard_s, here=False):
                self._changed.set()
        except Overloaded:
            if not self._full:
                log.warning("fleet_full", workers=len(self.fleet))
            self._full = True

    def _make(self, version: int, now_s: float) -> Update:
        changes = self.fleet.since(version)
        update = FleetUpdate(degraded=self.degraded)
        for entry in changes.workers:
            told = update.workers.add(report=entry.report)
            told.age.FromNanoseconds(max(0, int((now_s - entry.heard_s) * 1e9)))
        for gone in changes.gone:
            update.gone.add(worker_id=gone.worker_id, incarnation=gone.incarnation)
        return Update(update.SerializeToString(), changes.version, now_s)
