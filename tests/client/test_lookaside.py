"""The client that picks by itself, against real routers and workers."""

from __future__ import annotations

import asyncio
import signal

import pytest

import ladr
from ladr.errors import DeadlineExceeded, NotFound, Unreachable
from tests.load import channel_to, eligible, until, workers_of
from tests.processes import mesh


async def test_answers_come_straight_from_workers_and_all_get_their_share() -> None:
    async with mesh(3) as m, channel_to(m.router.address) as channel, ladr.Client(m.router.address) as proxied:
        await eligible(channel, "worker-1", "worker-2", "worker-3")
        undisturbed = await proxied.complete("hello")
        before = m.router.scrape()
        async with ladr.Client(m.router.address, lookaside=True) as client:
            answers = await asyncio.gather(*(client.complete(f"p{n}") for n in range(60)), client.complete("hello"))
        assert {answer.worker_id for answer in answers} == {"worker-1", "worker-2", "worker-3"}
        assert answers[-1].text == undisturbed.text
        count = 'ladr_rpc_calls_total{code="OK",method="/ladr.v1.Router/Generate"}'
        assert [line for line in before.splitlines() if line.startswith(count)] == [
            line for line in m.router.scrape().splitlines() if line.startswith(count)
        ]


async def test_nothing_stops_while_the_router_is_away() -> None:
    async with mesh(2) as m, ladr.Client(m.router.address, lookaside=True) as client:
        await client.wait_ready(10)
        await client.complete("first")
        await m.router.kill()
        await asyncio.sleep(1.2)  # past the TTL
        for n in range(10):
            await client.complete(f"p{n}")
        await m.router.start()
        await client.wait_ready(10)
        await client.complete("again")


async def test_an_answer_survives_the_worker_that_began_it() -> None:
    slow = {"LADR_WORKER__SIMULATED__STEP": "20ms", "LADR_WORKER__SIMULATED__ANSWER_TOKENS": "60"}
    async with mesh(2, worker=slow) as m, ladr.Client(m.router.address, lookaside=True) as client:
        await client.wait_ready(10)
        undisturbed = await client.complete("a long story")
        async with client.generate("a long story") as stream:
            seen = 0
            async for _ in stream.text():
                seen += 1
                if seen == 5:
                    assert stream.started
                    m.workers[int(stream.started.worker_id[-1]) - 1].send(signal.SIGKILL)
            answer = await stream.answer()
        assert (answer.text, answer.token_ids) == (undisturbed.text, undisturbed.token_ids)
        assert answer.attempts == 2


async def test_what_only_the_router_knows_is_asked_of_the_router() -> None:
    routes = {
        "LADR_ROUTER__CANARIES": '{"chat": {"sim": 1}}',
        "LADR_ROUTER__ALIASES": "short=sim,talk=chat",
        "LADR_ROUTER__DEFAULT_MODEL": "talk",
    }
    async with mesh(1, router=routes) as m, ladr.Client(m.router.address, lookaside=True) as client:
        await client.wait_ready(10)
        assert (await client.complete("x", model="chat")).model == "sim"
        assert (await client.complete("x", model="short")).model == "sim"
        assert (await client.complete("x", model="talk")).model == "sim"
        assert (await client.complete("x")).model == "sim"
        with pytest.raises(NotFound):
            await client.complete("x", model="nobody")


async def test_leaving_a_stream_frees_the_worker_and_closing_leaves_nothing() -> None:
    slow = {"LADR_WORKER__SIMULATED__STEP": "50ms", "LADR_WORKER__SIMULATED__ANSWER_TOKENS": "400"}
    async with mesh(1, worker=slow) as m, channel_to(m.router.address) as channel:
        client = ladr.Client(m.router.address, lookaside=True)
        await client.wait_ready(10)
        async with client.generate("x") as stream:
            async for _ in stream:
                if stream.started:
                    break
        streams = [client.generate(f"p{n}") for n in range(4)]
        for stream in streams:
            await anext(stream)
        await client.close()
        running = 1

        async def look() -> None:
            nonlocal running
            while running:
                running = (await workers_of(channel))["worker-1"].report.running
                await asyncio.sleep(0.05)

        looking = asyncio.create_task(look())
        await until(lambda: running == 0, 3.0, "a free worker")
        await looking


async def test_without_a_router_the_first_request_says_where_it_looked() -> None:
    async with ladr.Client("127.0.0.1:9", lookaside=True) as client:
        with pytest.raises(DeadlineExceeded, match=r"127\.0\.0\.1:9"):
            await client.complete("x", timeout=0.5)
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
            await client.complete("x")
