"""Several buses and routers, and what is measured on the way, in a mesh of processes."""

from __future__ import annotations

import asyncio
import re
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from ladr.v1 import generation_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.load import Load, ask, channel_to, eligible, until
from tests.processes import SIMULATED, Process, mesh
from tests.redis_server import RedisServer


async def test_routers_and_workers_on_different_buses_of_one_redis_are_one_fleet(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(RedisServer(tmp_path))

        async def start(service: str, **environment: str) -> Process:
            process = Process(service, environment)
            stack.push_async_callback(process.kill)
            return await process.start()

        backend = {"LADR_METRICS__BACKEND": "redis", "LADR_METRICS__REDIS_URL": redis.url}
        buses = [await start("metrics", **backend) for _ in range(2)]
        both = [f"{buses[0].address},{buses[1].address}", f"{buses[1].address},{buses[0].address}"]
        routers = [await start("router", LADR_ROUTER__BUS=both[n]) for n in range(2)]
        for n in range(2):
            worker = {**SIMULATED, "LADR_WORKER__BUS": both[n], "LADR_WORKER__ID": f"worker-{n + 1}"}
            await start("worker", **worker)
        channels = [await stack.enter_async_context(channel_to(router.address)) for router in routers]
        for channel in channels:
            await eligible(channel, "worker-1", "worker-2")
        async with Load(channels[0], per_s=20) as one, Load(channels[1], per_s=20) as other:
            await asyncio.sleep(1)
            buses[0].send(signal.SIGKILL)  # its worker and its router go on to the other one
            await asyncio.sleep(2)
            for channel in channels:
                await eligible(channel, "worker-1", "worker-2", within_s=3)
        for load in (one, other):
            assert not [o for o in load.outcomes if o.error is not None or o.finished != 1]
            assert {o.workers[0] for o in load.outcomes} == {"worker-1", "worker-2"}


async def test_the_time_to_the_first_token_is_that_of_the_first_token_everywhere() -> None:
    slow_to_read = {
        "LADR_WORKER__SIMULATED__PREFILL_TOKENS_PER_S": "200",
        "LADR_WORKER__SIMULATED__ANSWER_TOKENS": "50",
    }
    async with mesh(1, worker=slow_to_read) as m, channel_to(m.router.address) as channel:
        await eligible(channel, "worker-1")
        request = generation_pb2.GenerateRequest(prompt="x" * 800)
        *_, last = [e async for e in router_pb2_grpc.RouterStub(channel).Generate(request)]
        async with channel_to(m.workers[0].address) as direct:
            report = await worker_pb2_grpc.WorkerStub(direct).GetStatus(worker_pb2.GetStatusRequest())
        told = {
            "answer": last.finished.timings.time_to_first_token.ToTimedelta().total_seconds(),
            "report": report.time_to_first_token.sum.ToTimedelta().total_seconds(),
        }
        for name, process in (("router", m.router), ("worker", m.workers[0])):
            found = re.search(rf"^ladr_{name}_time_to_first_token_seconds_sum\S* (\S+)$", process.scrape(), re.M)
            assert found
            told[name] = float(found[1])
        assert all(1.0 <= seconds < 1.2 for seconds in told.values()), told
        assert report.time_to_first_token.count == 1
        assert report.time_per_output_token.count == 49


async def test_a_worker_restarted_many_times_leaves_one_series_a_metric() -> None:
    async with mesh(1) as m, channel_to(m.router.address) as channel:
        await eligible(channel, "worker-1")
        await until(lambda: 'worker="' in m.router.scrape(), 5, "the worker on the page")
        before = m.router.scrape().count('worker="')
        for _ in range(5):
            m.workers[0].send(signal.SIGKILL)
            await m.workers[0].ended()
            m.workers[0].port = m.workers[0].http_port = 0  # somewhere else each time
            await m.workers[0].start()
        async with asyncio.timeout(10):
            while (await ask(channel)).finished != 1:  # noqa: ASYNC110  # another process's state
                await asyncio.sleep(0.1)
        after = m.router.scrape()
        assert after.count("ladr_router_weight_ratio{") == 1
        assert after.count('worker="') <= before + 1  # its latency, which is not known before the first token
