"""Takes jobs from the store as the fleet has room for them, and keeps the store's clockwork going.

Any number of routers do this on one store. None of them is needed for a job to go on: what one leaves, another takes up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from ladr.config import JobsSettings
from ladr.errors import LadrError
from ladr.routing.router import Router
from services.router.jobs.attempt import Attempt
from services.router.jobs.machine import GiveBack, Stale
from services.router.jobs.metrics import JobsMetrics
from services.router.jobs.store import Store, Taken

log = structlog.get_logger()

LEASE_MARGIN = 1.25  # a lease ends, by the store's clock, so many times its length after the last beat
_AT_ONCE = 32  # jobs taken in one step
_EMPTY_S = 0.2  # between two looks at a queue that is empty, unless somebody submits here
_BUSY_S = 0.05  # between two looks at a fleet without room
_SWEEP_S = 0.2
_SWEEP_JOBS = 100
_CENSUS_S = 1.0
_LOST_S = 0.5  # between two tries while the store does not answer
_FAREWELL_S = 2.0  # how long giving jobs back may take at the end


class Dispatcher:
    """Runs jobs on this router's event loop; `run` once."""

    def __init__(self, router: Router, store: Store, settings: JobsSettings, metrics: JobsMetrics) -> None:
        self._router = router
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._running: dict[asyncio.Task[None], Attempt] = {}
        self._wake = asyncio.Event()
        self._draining = False
        self._postponed = False
        self._up: bool | None = None
        self._lost_s = float("-inf")  # when the store last did not answer

    def submitted(self) -> None:
        """There are new jobs."""
        self._wake.set()

    def stop_taking(self) -> None:
        """Take nothing new; what runs goes on."""
        self._draining = True

    def cancelled(self, job_id: str) -> None:
        """A job was cancelled: if it runs here, its worker is told now."""
        for task, attempt in self._running.items():
            if attempt.taken.job.id == job_id:
                task.cancel()

    async def run(self) -> None:
        """Until cancelled; what runs then is given back."""
        lease_s = self._settings.lease.total_seconds()
        try:
            await self._open()
            async with asyncio.TaskGroup() as group:
                for step in (self._take, self._count, self._sweep):
                    group.create_task(self._keep(step))
                group.create_task(self._keep(self._take_lost, first_s=lease_s / 4))
        finally:
            await self._give_back()

    async def _open(self) -> None:
        while True:
            try:
                await self._store.open()
                return
            except LadrError as error:
                self._says(up=False, error=error)
                await asyncio.sleep(_LOST_S)

    async def _keep(self, step: Callable[[], Awaitable[float]], first_s: float = 0.0) -> None:
        """Do a step for ever, each time as long after the last as that said; a store that fails is asked again."""
        await asyncio.sleep(first_s)
        while True:
            try:
                pause_s = await step()
                self._says(up=True)
            except LadrError as error:
                self._says(up=False, error=error)
                pause_s = _LOST_S
            except Exception:  # a fault in what the store holds, or of ours: requests are served on
                log.exception("jobs_broke", step=step.__name__)
                pause_s = _LOST_S
            if not pause_s:
                continue
            if step != self._take:
                await asyncio.sleep(pause_s)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    def _says(self, up: bool, error: LadrError | None = None) -> None:
        if not up:
            self._lost_s = time.monotonic()
        if up != self._up:
            self._up = up
            self._metrics.store(up)
            cause = error.__cause__ if error else None
            log.log(20 if up else 30, "jobs_store", answers=up, error=repr(cause or error) if error else "")

    async def _take(self) -> float:
        self._wake.clear()
        if self._postponed:  # a model without room: its jobs come and go no faster than this
            self._postponed = False
            return _EMPTY_S
        wanted = min(self._room(), _AT_ONCE)
        if wanted <= 0:
            return _BUSY_S
        taken = await self._store.claim(wanted)
        self._start(taken, lost=False)
        return 0.0 if len(taken) == wanted else _EMPTY_S

    async def _take_lost(self) -> float:
        """Attempts whose router is gone. After a store was away, its holders have a lease's time to be heard there first."""
        lease_s = self._settings.lease.total_seconds()
        wanted = min(self._room(), _AT_ONCE)
        if wanted > 0 and time.monotonic() - self._lost_s > lease_s:
            self._start(await self._store.reclaim(wanted), lost=True)
        return lease_s / 4

    async def _sweep(self) -> float:
        swept = await self._store.sweep(_SWEEP_JOBS)
        if swept:
            self._wake.set()
        return 0.0 if swept == _SWEEP_JOBS else _SWEEP_S

    async def _count(self) -> float:
        self._metrics.counted(await self._store.census(), self._store.now_ms())
        return _CENSUS_S

    def _room(self) -> int:
        """Jobs that may begin now: slots that are free beyond those that are left to others."""
        if self._draining or self._router.binder.waiting:
            return 0
        now_s = time.monotonic()
        board = self._router.board
        rows = [row for row in board.rows() if not board.ineligible(row, now_s)]
        slots, busy = sum(row.slots for row in rows), sum(row.depth for row in rows)
        if not slots:
            return 0
        on_the_way = sum(not attempt.begun for attempt in self._running.values())
        share = max(1, int(slots * (1 - self._settings.headroom)))
        return min(share - busy - on_the_way, self._settings.max_running - len(self._running))

    def _start(self, taken: list[Taken], lost: bool) -> None:
        for one in taken:
            self._metrics.began(one.job, lost)
            attempt = Attempt(self._store, self._router, self._settings, self._metrics, one)
            task = asyncio.create_task(attempt.run())
            self._running[task] = attempt
            task.add_done_callback(self._ended)
        self._metrics.running(len(self._running))

    def _ended(self, task: asyncio.Task[None]) -> None:
        attempt = self._running.pop(task)
        self._metrics.running(len(self._running))
        if attempt.postponed:
            self._postponed = True
        else:
            self._wake.set()
        if not task.cancelled() and (
            error := task.exception()
        ):  # a fault of ours: the lease ends, and it is tried again
            log.error("job_broke", job=attempt.taken.job.id, exc_info=error)

    async def _give_back(self) -> None:
        self._draining = True
        ours = dict(self._running)
        for task in ours:
            task.cancel()
        await asyncio.gather(*ours, return_exceptions=True)

        async def back(taken: Taken) -> None:
            with suppress(Stale, LadrError):
                await self._store.apply(taken.job.id, GiveBack(taken.job.token))

        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await asyncio.gather(*(back(attempt.taken) for attempt in ours.values()))
