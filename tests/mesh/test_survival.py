"""What a client sees of workers that die or fail: nothing, whichever way its requests take."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable

import pytest

import ladr
from ladr.answer import Answer
from ladr.v1 import worker_pb2, worker_pb2_grpc
from ladr.v1.generation_pb2 import Started
from tests.load import Load, channel_to, eligible
from tests.processes import SIMULATED, Process, mesh

STREAMS = 100
LONG = {"LADR_WORKER__SLOTS": "128", "LADR_WORKER__SIMULATED__ANSWER_TOKENS": "40"}


async def answers(client: ladr.Client, all_begun: Callable[[str], object] = lambda worker_id: None) -> list[Answer]:
    """What is answered to STREAMS prompts at once; once each has begun `all_begun` gets the worker with most of them."""
    begun: list[str] = []

    async def one(number: int) -> Answer:
        async with client.generate(f"story {number}", timeout=60) as stream:
            async for event in stream:
                if isinstance(event, Started) and event.attempt == 1:
                    begun.append(event.worker_id)
                    if len(begun) == STREAMS:
                        all_begun(Counter(begun).most_common(1)[0][0])
            return await stream.answer()

    return await asyncio.gather(*(one(number) for number in range(STREAMS)))


@pytest.mark.parametrize("lookaside", [False, True], ids=["proxied", "look-aside"])
async def test_a_worker_killed_under_a_hundred_streams_changes_no_answer(lookaside: bool) -> None:
    async with mesh(1, worker=LONG) as alone, ladr.Client(alone.router.address) as client:
        await client.wait_ready(10)
        undisturbed = await answers(client)
    slow = {**LONG, "LADR_WORKER__SIMULATED__STEP": "100ms"}
    async with mesh(3, worker=slow) as m, channel_to(m.router.address) as channel:
        names = ["worker-1", "worker-2", "worker-3"]
        await eligible(channel, *names)
        async with ladr.Client(m.router.address, lookaside=lookaside) as client:
            disturbed = await answers(client, lambda name: m.workers[names.index(name)].send(signal.SIGKILL))
    assert [(a.text, a.token_ids) for a in disturbed] == [(a.text, a.token_ids) for a in undisturbed]
    assert len({a.text for a in disturbed}) == STREAMS
    assert sum(a.attempts > 1 for a in disturbed) >= STREAMS // 10


async def test_a_worker_that_fails_at_once_gets_few_requests_and_no_client_sees_it() -> None:
    async with mesh(2) as m, channel_to(m.router.address) as channel:
        fails = {"LADR_WORKER__ID": "broken", "LADR_WORKER__SIMULATED__FAIL_RATIO": "1"}
        broken = Process("worker", {**SIMULATED, "LADR_WORKER__BUS": m.bus.address, **fails})
        try:
            await broken.start()
            await eligible(channel, "worker-1", "worker-2", "broken")
            async with Load(channel, per_s=60) as load:
                await asyncio.sleep(4)
            async with channel_to(broken.address) as straight:
                status = await worker_pb2_grpc.WorkerStub(straight).GetStatus(worker_pb2.GetStatusRequest())
        finally:
            await broken.kill()
    assert len(load.outcomes) > 100
    assert [o for o in load.outcomes if o.error is not None or o.finished != 1] == []
    assert 0 < status.failed_total < 0.1 * len(load.outcomes)
