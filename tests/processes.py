"""Real LADR processes for tests: ports of their own choosing, killed at the end whatever happened."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START_S = 60.0


class Process:
    """One `python -m services.NAME`, or another `module` in its place; `port` and `http_port` are known after `serving`."""

    def __init__(
        self, service: str, environment: Mapping[str, str], start_s: float = START_S, module: str = ""
    ) -> None:
        self.service = service
        self._module = module or f"services.{service}"
        self._start_s = start_s
        self._environment = dict(environment)
        self._lines: deque[str] = deque(maxlen=400)
        self._served = asyncio.Event()
        self.port = 0
        self.http_port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def log(self) -> str:
        return "\n".join(self._lines)

    async def start(self, wait: bool = True) -> Process:
        """Start it; again on the same ports after a kill."""
        section = self.service.upper()
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("LADR_", "OTEL_"))},
            f"LADR_{section}__PORT": str(self.port),
            f"LADR_{section}__HTTP_PORT": str(self.http_port),
            "LADR_TELEMETRY__LOG_FORMAT": "json",
            **self._environment,
        }
        self._served.clear()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ROOT / "ladr/cli/leash.py"), str(os.getpid())),
            *(sys.executable, "-m", self._module),
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd=ROOT,
        )
        self._reader = asyncio.create_task(self._read(self._process))
        if wait:
            await self.serving()
        return self

    async def serving(self) -> None:
        """Wait until it says that it serves."""
        served = asyncio.create_task(self._served.wait())
        assert self._reader
        done, _ = await asyncio.wait({served, self._reader}, timeout=self._start_s, return_when=asyncio.FIRST_COMPLETED)
        if served not in done:
            served.cancel()
            raise AssertionError(f"{self.service} does not serve:\n{self.log}")

    def scrape(self) -> str:
        """Its /metrics page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics") as page:
            return str(page.read().decode())

    def send(self, number: signal.Signals) -> None:
        assert self._process
        self._process.send_signal(number)

    async def ended(self, timeout_s: float = 30.0) -> int:
        """Wait for its end; gives the exit code."""
        assert self._process
        assert self._reader
        code = await asyncio.wait_for(self._process.wait(), timeout_s)
        await self._reader
        return code

    async def kill(self) -> None:
        """End it now, if it still runs."""
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self.ended()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr
        async for raw in process.stderr:
            line = raw.decode(errors="replace").rstrip()
            self._lines.append(line)
            try:
                event: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            many = "LADR_ROUTER__PROCESSES" in self._environment  # each of those says it too, before the one above them
            if event.get("event") == "serving" and ("processes" in event) == many:
                self.port, self.http_port = event["port"], event["http_port"]
                self._served.set()


@dataclass
class Mesh:
    """A bus, a router and workers."""

    bus: Process
    router: Process
    workers: list[Process] = field(default_factory=list)


SIMULATED = {
    "LADR_WORKER__ENGINE": "simulated",
    "LADR_WORKER__MODELS": '[{"name": "sim"}]',
    "LADR_WORKER__SLOTS": "8",
    "LADR_WORKER__SIMULATED__STEP": "5ms",
    "LADR_WORKER__SIMULATED__ANSWER_TOKENS": "20",
}


@asynccontextmanager
async def mesh(
    workers: int = 3,
    worker: Mapping[str, str] | None = None,
    router: Mapping[str, str] | None = None,
    bus: Mapping[str, str] | None = None,
    everybody: Mapping[str, str] | None = None,
    start_s: float = START_S,
) -> AsyncIterator[Mesh]:
    """Simulated workers, unless `worker` says otherwise; each of the mappings is environment of those processes."""
    every = dict(everybody or {})
    async with AsyncExitStack() as stack:

        def process(service: str, environment: Mapping[str, str]) -> Process:
            made = Process(service, {**environment, **every}, start_s)
            stack.push_async_callback(made.kill)
            return made

        metrics = await process("metrics", bus or {}).start()
        there = {"LADR_ROUTER__BUS": metrics.address, "LADR_WORKER__BUS": metrics.address}
        front = await process("router", {**there, **(router or {})}).start()
        fleet = [
            process("worker", {**SIMULATED, **there, **(worker or {}), "LADR_WORKER__ID": f"worker-{n}"})
            for n in range(1, workers + 1)
        ]
        await asyncio.gather(*(one.start() for one in fleet))
        try:
            yield Mesh(metrics, front, fleet)
        except BaseException:
            for one in (metrics, front, *fleet):
                print(f"--- {one.service} {one.pid}\n{one.log}")
            raise
