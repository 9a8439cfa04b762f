"""One MetricsBus server, put together from its settings."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog

from ladr.config import MetricsSettings
from services.common.server import NOT_SERVING, SERVING, Server, serve
from services.metrics.backend import Backend, MemoryBackend
from services.metrics.bus import Bus
from services.metrics.collector import BusCollector
from services.metrics.redis_backend import RedisBackend
from services.metrics.servicer import NAME, MetricsBusServicer

log = structlog.get_logger()

STORE = f"{NAME}/redis"  # health service that tells of Redis alone; the bus serves without it
_GRACE = timedelta(seconds=1)  # for streams that drain has ended: who does not read by then is cut off


class App:
    """A bus with its server; `run` once.

    Raises: ConfigError: the settings do not fit together.
    """

    def __init__(self, settings: MetricsSettings) -> None:
        self._settings = settings
        backend: Backend = RedisBackend(settings) if settings.backend == "redis" else MemoryBackend()
        self.bus = Bus(settings, backend)
        self.servicer = MetricsBusServicer(self.bus, settings)
        self.server = Server(settings.model_copy(update={"drain_grace": min(settings.drain_grace, _GRACE)}))
        self.server.add(NAME, self.servicer.handlers())
        self.server.registry.register(BusCollector(self.bus, self.servicer))
        self.serving = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; all streams are then ended at once.

        Raises: CannotStart: a port is in use.
        """
        background = [self.bus.run]
        if self._settings.backend == "redis":
            background.append(self._tell_store)
        await serve(self.server, stop, started=self._started, background=background, before_stop=self._drain)

    async def _started(self) -> None:
        await self.server.set_serving(True)
        log.info("serving", port=self.server.port, http_port=self.server.http_port, backend=self._settings.backend)
        self.serving.set()

    async def _drain(self) -> None:
        self.servicer.drain()

    async def _tell_store(self) -> None:
        """Keep the health of the store up to date; the bus ticks whenever it changes."""
        while True:
            degraded = self.bus.degraded
            await self.server.health.set(STORE, NOT_SERVING if degraded else SERVING)
            while self.bus.degraded == degraded:
                await self.bus.tick.wait()
