"""What may happen to Redis under jobs, and that each heals by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_py

from ladr.errors import JobsUnavailable, Overloaded
from ladr.v1 import generations_pb2 as pb
from services.router.jobs.machine import Limits, Succeed
from services.router.jobs.store import Store, Taken
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.router.jobs.stores import draft, everything, redis_home, submit
from tests.router.jobs.test_jobs import SLOW, asked, ended, serving

QUEUE = "{test:jobs}:queue:3"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path, appendonly=True) as server:
        yield server


async def finish(store: Store, taken: Taken) -> None:
    assert await store.apply(taken.job.id, Succeed(taken.job.token, 1, b"!", b""))


async def test_scripts_that_were_flushed_are_given_again(own: RedisServer) -> None:
    async with redis_home(own.url).router() as store:
        await submit(store, draft("a"))
        with own.client() as client:
            client.script_flush()
        await submit(store, draft("b"), draft("c"))
        for _ in range(3):
            with own.client() as client:
                client.script_flush()
            (taken,) = await store.claim(1)
            assert await store.beat(taken.job.id, taken.job.token)
            await finish(store, taken)
        assert {job.state for job in (await everything(store)).values()} == {"succeeded"}


async def test_a_group_that_is_gone_is_made_again_and_neither_loses_nor_repeats_a_job(own: RedisServer) -> None:
    async with redis_home(own.url).router(60_000) as holder, redis_home(own.url).router(60_000) as other:
        await submit(holder, draft("a"), draft("b"))
        (a,) = await holder.claim(1)
        with own.client() as client:
            client.xgroup_destroy(QUEUE, "routers")
        assert await holder.beat("a", a.job.token)
        assert [taken.job.id for taken in await other.claim(5)] == ["b"]  # a is given out too, and left to its holder
        assert await holder.beat("a", a.job.token)
        assert await other.reclaim(5) == []
        await finish(holder, a)
        with own.client() as client:
            assert client.xlen(QUEUE) == 1  # b alone
            assert client.xpending(QUEUE, "routers")["pending"] == 1


async def test_jobs_whose_queue_was_deleted_are_queued_again(own: RedisServer) -> None:
    async with redis_home(own.url).router() as store:
        await submit(store, draft("a"), draft("b"))
        with own.client() as client:
            client.delete(QUEUE)
        assert await store.claim(5) == []
        await store.sweep(10)
        assert {taken.job.id for taken in await store.claim(5)} == {"a", "b"}


async def test_a_full_redis_refuses_jobs_keeps_leases_and_goes_on_when_there_is_room(own: RedisServer) -> None:
    async with redis_home(own.url).router() as store:
        await submit(store, draft("a"))
        (taken,) = await store.claim(1)
        with own.client() as client:
            client.config_set("maxmemory", "1mb")
            (refused,) = await store.submit([draft("b")])
            assert isinstance(refused, Overloaded)
            assert refused.retry_after
            with pytest.raises(Overloaded):
                await finish(store, taken)
            assert await store.beat("a", taken.job.token)
            client.config_set("maxmemory", "0")
        await finish(store, taken)
        await submit(store, draft("b"))
        assert (await everything(store)).keys() == {"a", "b"}


async def test_a_redis_that_is_gone_is_an_error_that_says_when_to_try_again(own: RedisServer) -> None:
    async with redis_home(own.url).router() as store:
        await submit(store, draft("a"))
        own.kill()
        with pytest.raises(JobsUnavailable) as caught:
            await submit(store, draft("b"))
        assert caught.value.retry_after
        own.start()
        await submit(store, draft("b"))
        assert (await everything(store)).keys() == {"a", "b"}


async def test_calls_that_are_cancelled_leave_no_connection_in_the_middle_of_an_answer(own: RedisServer) -> None:
    async with redis_home(own.url).router() as store:
        await submit(store, draft("a"), draft("b"))
        for n in range(200):
            call = asyncio.create_task(store.get("a"))
            for _ in range(n % 7):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            found = await store.get("b")
            assert found
            assert found.id == "b"


async def test_consumers_of_routers_that_are_gone_are_taken_away_once_they_hold_nothing(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.router.jobs.redis_store._TIDY_IDLE_MS", -1)
    async with redis_home(own.url).router(60_000) as gone:
        await submit(gone, draft("a"))
        (taken,) = await gone.claim(1)
    async with redis_home(own.url, "test").router(0) as store:
        with own.client() as client:
            await store.sweep(1)
            assert len(client.xinfo_consumers(QUEUE, "routers")) == 1  # it holds a job
            (again,) = await store.reclaim(1)
            assert again.job.attempts == taken.job.attempts + 1
            store._tidied_s = float("-inf")  # type: ignore[attr-defined]
            await store.sweep(1)
            assert [row["pending"] for row in client.xinfo_consumers(QUEUE, "routers")] == [1]


async def test_every_step_stays_within_one_slot_of_a_cluster(tmp_path: Path) -> None:
    config = f"cluster-enabled yes\ncluster-port {free_port()}\ncluster-require-full-coverage no\n"
    with RedisServer(tmp_path, config=config) as server:
        with server.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            for _ in range(200):
                if client.execute_command("CLUSTER INFO")["cluster_state"] == "ok":
                    break
                await asyncio.sleep(0.05)
            with pytest.raises(redis_py.ResponseError, match="same slot"):
                client.mget("a", "b")
        async with redis_home(server.url).router(0, Limits(attempts=100)) as store:
            await submit(store, *(draft(f"{{{n}}}") for n in range(5)))
            for _ in range(5):
                (taken,) = await store.claim(1)
                await store.append(taken.job.id, taken.job.token, 0, b"piece")
                assert await store.beat(taken.job.id, taken.job.token)
                await store.reclaim(5)
            await store.sweep(5)
            assert (await store.census()).states["running"] == 5


async def test_the_next_job_starts_within_five_seconds_of_each_of_five_restarts(own: RedisServer) -> None:
    environment = {"LADR_ROUTER__JOBS__STORE": "redis", "LADR_ROUTER__JOBS__REDIS_URL": own.url}
    async with serving(environment, worker=SLOW) as (_, stub):
        await stub.SubmitGeneration(asked("long"))
        for n in range(5):
            await asyncio.to_thread(own.kill)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(own.start)
            began_s = time.time()
            async with asyncio.timeout(10):
                while True:
                    try:
                        await stub.SubmitGeneration(asked(f"job-{n}"))
                        break
                    except Exception:  # Redis is on its way
                        await asyncio.sleep(0.05)
            job = await ended(stub, f"job-{n}")
            assert job.state == pb.GENERATION_STATE_SUCCEEDED
            assert job.started_at.ToMilliseconds() / 1000 - began_s < 5
        assert (await ended(stub, "long")).attempts == 1
