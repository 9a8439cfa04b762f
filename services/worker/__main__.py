"""`python -m services.worker`: one worker process."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing

from ladr import config
from services.common import telemetry
from services.common.server import CannotStart, Server, run, serve
from services.worker import engines
from services.worker.collector import WorkerCollector
from services.worker.gpus import Gpus
from services.worker.reporter import Reporter
from services.worker.servicer import NAME, WorkerServicer
from services.worker.worker import Worker


async def main(settings: config.Settings, stop: asyncio.Event) -> None:
    own = settings.worker
    engine = engines.create(own)
    gpus = Gpus()
    server = Server(own)
    worker = Worker(own, own.id, engine, gpus, changed=lambda: reporter.wake())
    reporter = Reporter(worker.report, own.bus, own.report_interval)
    server.registry.register(WorkerCollector(worker, gpus))
    server.add(NAME, WorkerServicer(worker).handlers())

    async def load() -> None:
        for model in own.models:
            async with aclosing(worker.models.load(model)) as steps:  # type: ignore[type-var]
                async for _ in steps:
                    pass
        await server.set_serving(True)

    async def start() -> None:
        worker.address = _reachable(own, server.port)
        worker.id = own.id or config.default_worker_id(own.host, server.port)
        reporter.start()
        try:
            await load()
        except Exception as error:
            raise CannotStart(str(error)) from error

    async def drain() -> None:
        worker.drain()
        await asyncio.sleep(2 * own.report_interval.total_seconds())

    traces = telemetry.set_up_traces(settings.telemetry, "worker", worker.incarnation)
    try:
        await serve(server, stop, started=start, background=[worker.beat], before_stop=drain)
    finally:
        worker.stopped()
        await asyncio.to_thread(reporter.close)
        await worker.models.close()
        await engine.close()
        if traces:
            await asyncio.to_thread(traces.shutdown)


def _reachable(own: config.WorkerSettings, port: int) -> str:
    """Where routers find this worker: what it advertises, else the host it listens on, else this machine's name."""
    if ":" in own.advertise:
        return own.advertise
    host = own.advertise or (socket.gethostname() if own.host in ("0.0.0.0", "::", "[::]") else own.host)
    return f"{host}:{port}"


if __name__ == "__main__":
    run("worker", main)
