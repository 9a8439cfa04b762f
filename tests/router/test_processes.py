"""Several router processes on one port, as a user runs them."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.load import ask, channel_to, eligible, until
from tests.processes import SIMULATED, Mesh, Process, mesh


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def processes_of(page: str) -> set[str]:
    """Which processes a page of metrics tells of."""
    return {part for line in page.splitlines() for part in line.split('"') if line.count("process=") and part in "01"}


async def test_two_processes_share_a_port_its_connections_and_a_page() -> None:
    async with mesh(2, router={"LADR_ROUTER__PROCESSES": "2"}) as m, AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(channel_to(m.router.address)) for _ in range(16)]
        await asyncio.gather(*(eligible(channel, "worker-1", "worker-2") for channel in channels))
        outcomes = await asyncio.gather(*(ask(channel, f"p{n}") for n, channel in enumerate(channels * 4)))
        assert all(outcome.finished == 1 for outcome in outcomes)
        page = m.router.scrape()
        served = [line for line in page.splitlines() if line.startswith("ladr_router_requests_total{")]
        assert len(served) == 2  # each had some
        assert sum(float(line.rpartition(" ")[2]) for line in served) == 64


async def test_a_crashed_one_starts_again_and_the_others_serve_on() -> None:
    async with mesh(1, router={"LADR_ROUTER__PROCESSES": "2"}) as m:
        async with channel_to(m.router.address) as channel:
            await eligible(channel, "worker-1")
        victim = children_of(m.router.pid)[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: not runs(victim), 10, "its end")
        for _ in range(5):
            async with channel_to(m.router.address) as channel:
                assert (await ask(channel)).finished == 1
        async with asyncio.timeout(20):
            while len(children_of(m.router.pid)) < 2 or processes_of(m.router.scrape()) != {"0", "1"}:  # noqa: ASYNC110  # other processes
                await asyncio.sleep(0.1)


async def test_sigterm_ends_them_all() -> None:
    async with mesh(1, router={"LADR_ROUTER__PROCESSES": "3"}) as m:
        children = children_of(m.router.pid)
        assert len(children) == 3
        m.router.send(signal.SIGTERM)
        assert await m.router.ended() == 0
        assert not [child for child in children if runs(child)]


async def test_a_port_that_another_has_is_one_line_and_exit_2() -> None:
    async with mesh(0) as m:
        second = Process("router", {**_on(m), "LADR_ROUTER__PROCESSES": "2"})
        second.port = m.router.port
        await second.start(wait=False)
        assert await second.ended() == 2
        assert "is in use" in second.log


async def test_the_older_poller_is_taken_on_request() -> None:
    async with mesh(1, router={"LADR_ROUTER__EVENT_ENGINE": "off"}) as m, channel_to(m.router.address) as channel:
        await eligible(channel, "worker-1")
        assert (await ask(channel)).finished == 1
        assert b"event_engine_client" in environment_of(m.router.pid)


def _on(m: Mesh) -> dict[str, str]:
    return {**SIMULATED, "LADR_ROUTER__BUS": m.bus.address}
