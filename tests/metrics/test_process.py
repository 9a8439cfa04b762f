"""`python -m services.metrics` as an operator meets it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time

import grpc

from ladr.v1.metrics_pb2 import SubscribeRequest
from tests.metrics.buses import connected, report


async def start(**environ: str) -> asyncio.subprocess.Process:
    base = {"LADR_METRICS__PORT": "0", "LADR_METRICS__HTTP_PORT": "0"}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.metrics",
        env=os.environ | base | environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def port_of(process: asyncio.subprocess.Process) -> int:
    """Wait for the line that says where it serves."""
    assert process.stderr
    async with asyncio.timeout(20):
        async for line in process.stderr:
            event = json.loads(line)
            if event["event"] == "serving":
                return int(event["port"])
    raise AssertionError("it ended without serving")


async def test_sigterm_ends_its_streams_and_it_exits_0_within_two_seconds() -> None:
    process = await start()
    async with connected(await port_of(process)) as stub:
        publishing, watching = stub.Publish(), stub.Subscribe(SubscribeRequest())
        await publishing.write(report())
        await publishing.read()
        await watching.read()
        began_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        for call in (publishing, watching):
            assert await call.code() == grpc.StatusCode.UNAVAILABLE
        assert await process.wait() == 0
        assert time.monotonic() - began_s < 2.0


async def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = await start(LADR_METRICS__PORT=str(taken.getsockname()[1]))
        out, err = await process.communicate()
    assert process.returncode == 2
    assert err.decode().startswith("metrics: port ")
    assert err.count(b"\n") == 1
    assert not out


async def test_a_wrong_redis_url_is_one_line_without_the_secret_and_exit_code_2() -> None:
    process = await start(LADR_METRICS__BACKEND="redis", LADR_METRICS__REDIS_URL="http://:s3cret@127.0.0.1")
    _, err = await process.communicate()
    assert process.returncode == 2
    assert err.count(b"\n") == 1
    assert b"s3cret" not in err
