"""Parts of a benchmark in processes of their own: orders on stdin and results on stdout, a JSON line each."""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.processes import ROOT


class Helper:
    """One such process, seen from the benchmark."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, order: Any = None) -> Any:
        """Give an order, and wait for its result."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return await self.result()

    async def result(self) -> Any:
        """Its next line. Raises: RuntimeError: it ended."""
        assert self._process.stdout
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("a helper ended; what it said is on stderr")
        return json.loads(line)


@asynccontextmanager
async def helper(module: str, *arguments: str) -> AsyncIterator[Helper]:
    """Start a Python module; it is killed when the block is left."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        limit=1 << 24,
    )
    try:
        yield Helper(process)
    finally:
        process.kill()
        await process.wait()


async def obey(carry_out: Callable[[Any], Awaitable[Any]]) -> None:
    """The helper's side: carry out orders until there are no more."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await carry_out(json.loads(line))), flush=True)


def end_with_parent() -> None:
    """Get SIGTERM when the process that started this one ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
