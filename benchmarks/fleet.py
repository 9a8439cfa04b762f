"""Processes of a mesh for benchmarks: a bus, simulated workers that differ, and any number of routers over them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ladr.config import env_name
from tests.load import channel_to, eligible
from tests.processes import Process

MODEL = "sim"


@dataclass
class Fleet:
    """A bus, and workers by name."""

    bus: Process
    workers: dict[str, Process]

    @asynccontextmanager
    async def router(self, **settings: Any) -> AsyncIterator[Process]:
        """A router over all of them, with these settings; it runs once each of them may get requests."""
        process = Process("router", {"LADR_ROUTER__BUS": self.bus.address, **environment("router", settings)})
        try:
            await process.start()
            async with channel_to(process.address) as channel:
                await eligible(channel, *self.workers)
            yield process
        finally:
            await process.kill()


@asynccontextmanager
async def fleet(workers: Sequence[Mapping[str, Any]]) -> AsyncIterator[Fleet]:
    """Start them; each is given as in `up.fleet`: the worker settings in which it differs, its `id` among them."""
    async with AsyncExitStack() as stack:

        def process(service: str, settings: Mapping[str, str]) -> Process:
            made = Process(service, settings)
            stack.push_async_callback(made.kill)
            return made

        bus = await process("metrics", {}).start()
        common = {"engine": "simulated", "models": [{"name": MODEL}], "bus": bus.address}
        made = {str(each["id"]): process("worker", environment("worker", {**common, **each})) for each in workers}
        await asyncio.gather(*(worker.start() for worker in made.values()))
        yield Fleet(bus, made)


def environment(section: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings of a section as environment variables. A port is left to be found, and kept when a process starts again."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= environment(f"{section}__{key}", value)
        elif key not in ("port", "http_port"):
            found[env_name(section, key)] = value if isinstance(value, str) else json.dumps(value)
    return found
