"""`ladr jobs import` of 100,000 lines: how long it takes, and how much memory router and command take for it.

A router without workers, with each store in turn: SQLite in a file, and Redis (append-only file, fsync always). Memory is
the resident size before, and the greatest while it runs and after.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Report, Table
from tests.processes import ROOT, mesh
from tests.redis_server import RedisServer


def run(quick: bool) -> Report:
    """Measure, in some minutes. Quick: 500 lines."""
    return asyncio.run(_run(500 if quick else 100_000))


async def _run(count: int) -> Report:
    table = Table(
        f"Import of {count:,} lines",
        (
            "store",
            "seconds",
            "lines [1/s]",
            "router before [MB]",
            "router most [MB]",
            "router grew [MB]",
            "command most [MB]",
        ),
    )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        file = directory / "in.jsonl"
        _write(file, count)
        with RedisServer(directory, appendonly=True) as redis:
            for store, environment in (
                ("sqlite", {"LADR_ROUTER__JOBS__PATH": str(directory / "jobs.db")}),
                ("redis", {"LADR_ROUTER__JOBS__REDIS_URL": redis.url}),
            ):
                table.add(store, *await _import(file, count, {"LADR_ROUTER__JOBS__STORE": store, **environment}))
    return Report([table])


def _write(file: Path, count: int) -> None:
    with file.open("w") as out:
        for n in range(count):
            body = {
                "messages": [{"role": "user", "content": f"Summarize document {n}. " + "word " * 60}],
                "max_tokens": 64,
            }
            entry = {"custom_id": f"line-{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            out.write(json.dumps(entry) + "\n")


async def _import(file: Path, count: int, environment: dict[str, str]) -> tuple[float, ...]:
    async with mesh(0, router=environment) as there:
        small = file.with_name("small.jsonl")  # so that what comes with the first call is there before
        small.write_text(json.dumps({"custom_id": "first", "body": {"prompt": "hello"}}) + "\n")
        await _command(small, there.router.address, there.router.pid)
        before_mb = _resident_mb(there.router.pid)
        began_s = time.monotonic()
        router_mb, command_mb, said = await _command(file, there.router.address, there.router.pid)
        took_s = time.monotonic() - began_s
        if said["accepted"] != count:
            raise RuntimeError(f"not all lines were taken: {said}")
        return took_s, count / took_s, before_mb, router_mb, router_mb - before_mb, command_mb


async def _command(file: Path, address: str, router: int) -> tuple[float, float, dict[str, int]]:
    """Run an import; gives the most memory of router and command [MB], and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ladr", "jobs", "import", str(file), "--address", address, "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    most = [0.0, 0.0]
    reader = asyncio.create_task(process.communicate())
    while not reader.done():
        most = [max(a, _resident_mb(pid)) for a, pid in zip(most, (router, process.pid), strict=True)]
        await asyncio.wait({reader}, timeout=0.1)
    most[0] = max(most[0], _resident_mb(router))
    out, _ = reader.result()
    return most[0], most[1], json.loads(out)


def _resident_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(row.split()[1]) / 1024 for row in status.splitlines() if row.startswith("VmRSS")), 0.0)
