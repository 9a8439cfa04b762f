"""One Router server, put together from its settings."""

from __future__ import annotations

import asyncio
import time
from random import Random, SystemRandom

import structlog
import uuid_utils

from ladr.config import RouterSettings
from ladr.routing.router import Router
from ladr.v1 import metrics_pb2
from services.common.server import NOT_SERVING, SERVING, Server, serve
from services.router.collector import RouterCollector
from services.router.jobs import parts
from services.router.jobs.servicer import JobsServicer
from services.router.listener import Listener
from services.router.routes import Routes
from services.router.scaling import Scaling
from services.router.servicer import NAME, RouterServicer
from services.router.sink import RouterSink
from services.router.splits import Splits
from services.router.tuning.tuning import Tuning

log = structlog.get_logger()

STATS = f"{NAME}/stats"  # health service: NOT_SERVING while no reports come and own counts decide


def make_id() -> str:
    """A request_id for a request that has none: a UUIDv7."""
    return str(uuid_utils.uuid7())


class App:
    """A router with its server; `run` once.

    Health: "" serves while the process does; "ladr.v1.Router" while a worker may get requests.
    """

    def __init__(self, settings: RouterSettings, rng: Random | None = None) -> None:
        self._settings = settings
        self.server = Server(settings, settings.share_port)
        sink = RouterSink(self.server.registry, settings.first_token_slo.total_seconds())
        self.router = Router(settings, rng or SystemRandom(), make_id, sink)
        self.scaling = Scaling(self.router, settings, sink.misses)
        binder = self.router.binder
        self.routes = Routes(self.router.board, binder.policy, binder.main_policy, settings, self.router.models.splits)
        self.tuning = Tuning(
            settings.tuner,
            settings.policy,
            self.router.binder,
            sink.outcomes,
            self.scaling.utilization,
            Random(),  # noqa: S311  # it explores; nobody is kept from guessing
            self.server.registry,
        )
        self.listener = Listener(settings.bus, self._hear, self.router.board.lost)
        self.server.registry.register(RouterCollector(self.router, self.routes, self.scaling))
        self.jobs = parts.make(settings.jobs, self.router, self.server.registry, make_id)
        splits = Splits(self.router.models, sink.tallies, settings.processes)
        servicer = RouterServicer(self.router, self.routes, self.scaling, splits)
        jobs_servicer = JobsServicer(self.jobs.jobs if self.jobs else None)
        self.server.add(NAME, {**servicer.handlers(), **jobs_servicer.handlers()})
        self.serving = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; open answers are finished within the grace.

        Raises: CannotStart: a port is in use.
        """
        background = [self.listener.run, self._tick_for_ever, self.tuning.run]
        if self.jobs:
            background.append(self.jobs.dispatcher.run)
        try:
            await serve(self.server, stop, started=self._started, background=background, before_stop=self._drain)
        finally:
            if self.jobs:
                await self.jobs.store.close()
            await self.router.close()

    async def _started(self) -> None:
        await self.server.health.set("", SERVING)
        log.info("serving", port=self.server.port, http_port=self.server.http_port, policy=self._settings.policy)
        self.serving.set()

    async def _drain(self) -> None:
        self.routes.close()
        self.scaling.close()
        if self.jobs:
            self.jobs.dispatcher.stop_taking()
            self.jobs.jobs.close()

    def _hear(self, update: metrics_pb2.FleetUpdate) -> None:
        self.router.board.hear(update, time.monotonic())
        self.router.binder.changed()

    async def _tick_for_ever(self) -> None:
        told: tuple[bool, bool] | None = None
        due_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            self.router.tick(now_s)
            self.routes.tick(now_s)
            self.scaling.tick(now_s)
            await self.router.channels.keep(self.router.board.addresses())
            rows = self.router.board.rows()
            routable = any(not self.router.board.ineligible(row, now_s) for row in rows)
            state = (routable, not self.router.board.blind(now_s))
            if state != told:
                told = state
                for name, well in zip((NAME, STATS), state, strict=True):
                    await self.server.health.set(name, SERVING if well else NOT_SERVING)
                log.info("fleet", routable=state[0], hears_reports=state[1], workers=len(rows))
            due_s = max(due_s + self._settings.tick.total_seconds(), time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
