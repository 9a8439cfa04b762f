"""One Worker server, put together from its settings."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing

import structlog

from ladr.config import WorkerSettings, default_worker_id
from ladr.errors import LadrError
from ladr.v1 import fleet_pb2
from services.common.server import NOT_SERVING, SERVING, CannotStart, Server, serve
from services.worker import engines
from services.worker.collector import WorkerCollector
from services.worker.gpus import Gpus
from services.worker.reporter import Reporter
from services.worker.servicer import NAME, WorkerServicer
from services.worker.worker import Worker

log = structlog.get_logger()


class App:
    """A worker with its server and its reporter; `run` once. Health of
    "ladr.v1.Worker" says SERVING while the models are loaded and it is not draining.

    Raises: ConfigError: the engine's library is not installed.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        gpus = Gpus()
        self._news = asyncio.Event()
        self.engine = engines.create(settings)
        self.server = Server(settings)
        self.worker = Worker(settings, self.engine, gpus, changed=self._changed)
        self.reporter = Reporter(self.worker.report, settings.bus, settings.report_interval)
        self.server.registry.register(WorkerCollector(self.worker, gpus))
        self.server.add(NAME, WorkerServicer(self.worker).handlers())
        self.serving = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`: then report DRAINING, finish what is open within the grace, report STOPPED.

        Raises: CannotStart: a port is in use, or a model cannot be loaded.
        """
        try:
            await serve(
                self.server,
                stop,
                started=self._started,
                background=[self.worker.beat, self._tell_health],
                before_stop=self._drain,
            )
        finally:
            self.worker.stopped()
            await asyncio.to_thread(self.reporter.close)
            await self.worker.models.close()
            await self.engine.close()

    def _changed(self) -> None:
        self.reporter.wake()
        self._news.set()

    async def _tell_health(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            ready = self.worker.state == fleet_pb2.WORKER_STATE_READY
            await self.server.health.set(NAME, SERVING if ready else NOT_SERVING)

    async def _started(self) -> None:
        own = self._settings
        self.worker.id = own.id or default_worker_id(own.host, self.server.port)
        self.worker.address = _reachable(own, self.server.port)
        self.worker.models.expect(own.models)
        self.reporter.start()
        for model in own.models:
            try:
                async with aclosing(self.worker.models.load(model)) as steps:
                    async for _ in steps:
                        pass
            except LadrError as error:
                raise CannotStart(f"model {model.name} cannot be loaded: {error.message}") from error
        await self.server.health.set("", SERVING)
        log.info("serving", worker=self.worker.id, port=self.server.port, http_port=self.server.http_port)
        self.serving.set()
        self.worker.started()

    async def _drain(self) -> None:
        self.worker.drain()
        await asyncio.sleep(2 * self._settings.report_interval.total_seconds())  # so that routers hear of it first


def _reachable(own: WorkerSettings, port: int) -> str:
    """Where routers find this worker: what it advertises, else the host it listens on, else this machine's name."""
    if ":" in own.advertise:
        return own.advertise
    host = own.advertise or (socket.gethostname() if own.host in ("0.0.0.0", "::", "[::]") else own.host)
    return f"{host}:{port}"
