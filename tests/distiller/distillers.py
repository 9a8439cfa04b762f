"""Distillers for tests: real servers whose trainers are played, in this process or as processes of their own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ladr import Client
from ladr.config import DistillerSettings
from ladr.distill_calls import distill_state
from ladr.errors import Unreachable
from ladr.v1 import distiller_pb2 as pb
from services.distiller.app import App
from tests.processes import Process

PLAYED = (sys.executable, "-m", "tests.distiller.played_trainer")


def roots(directory: Path) -> dict[str, Any]:
    """Settings with empty roots and a little data under them."""
    for name in ("models/teacher", "data"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "data" / "chats.jsonl").write_text('{"text": "hello"}\n')
    return {
        "state": directory / "state",
        "model_root": directory / "models",
        "data_root": directory / "data",
        "port": 0,
        "http_port": 0,
        "devices": ("cpu",),
        "stop_grace": "5s",
    }


@asynccontextmanager
async def distiller(
    directory: Path, trainer: Sequence[str] = PLAYED, **settings: Any
) -> AsyncIterator[tuple[App, Client]]:
    """A server in this process, with a client. Args: trainer: its command line; played, unless it is said otherwise."""
    app = App(DistillerSettings(**{**roots(directory), **settings}), trainer)
    stop = asyncio.Event()
    running = asyncio.create_task(app.run(stop))
    serving = asyncio.create_task(app.serving.wait())
    await asyncio.wait({running, serving}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if running.done():
            await running
        async with Client(f"127.0.0.1:{app.server.port}") as client:
            yield app, client
    finally:
        serving.cancel()
        stop.set()
        await running


def process(directory: Path, **environ: str) -> Process:
    """A server as a process of its own."""
    found = {key: value for key, value in roots(directory).items() if key not in ("port", "http_port", "devices")}
    settings = {f"LADR_DISTILLER__{key.upper()}": str(value) for key, value in found.items()}
    return Process(
        "distiller", {**settings, "LADR_DISTILLER__DEVICES": "cpu", **environ}, module="tests.distiller.played_service"
    )


def spec(play: str = "", steps: int = 10, checkpoint_steps: int = 5, **training: Any) -> dict[str, Any]:
    """A job that a played trainer takes."""
    return {
        "teacher": "teacher",
        "data": {"path": "chats.jsonl"},
        "student": {"source": play},
        "training": {"steps": steps, "checkpoint_steps": checkpoint_steps, **training},
    }


async def until(
    client: Client, job_id: str, enough: Callable[[pb.DistillJob], bool], within_s: float = 20
) -> pb.DistillJob:
    """Wait until a job is as is wished; also over a restart of the service, by which one call may be lost."""
    async with asyncio.timeout(within_s):
        while True:
            with suppress(Unreachable):
                if enough(job := await client.get_distill_job(job_id)):
                    return job
            await asyncio.sleep(0.02)


async def ended(client: Client, job_id: str, within_s: float = 20) -> pb.DistillJob:
    """Wait for the end of a job."""
    return await until(client, job_id, lambda job: distill_state(job) not in ("queued", "running"), within_s)


async def stepping(client: Client, job_id: str, step: int = 1) -> pb.DistillJob:
    """Wait until a job has done so many steps."""
    return await until(client, job_id, lambda job: job.progress.step >= step)
