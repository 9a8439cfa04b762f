"""Durable jobs over the wire: real routers, workers and stores as processes."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

from ladr.v1 import generation_pb2, router_pb2_grpc
from ladr.v1 import generations_pb2 as pb
from tests.load import channel_to, eligible
from tests.mesh.test_trace import CANARY, Receiver
from tests.processes import Mesh, Process, mesh
from tests.redis_server import RedisServer

SLOW = {"LADR_WORKER__SIMULATED__STEP": "50ms", "LADR_WORKER__SIMULATED__ANSWER_TOKENS": "40"}


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Environment of routers that keep jobs, in an empty store of either kind."""
    fast = {"LADR_ROUTER__JOBS__LEASE": "1s", "LADR_ROUTER__JOBS__STORE": request.param}
    if request.param == "sqlite":
        return fast | {"LADR_ROUTER__JOBS__PATH": str(tmp_path / "jobs" / "jobs.db")}
    server: RedisServer = request.getfixturevalue("redis")
    with server.client() as client:
        client.flushall()
    return fast | {"LADR_ROUTER__JOBS__REDIS_URL": server.url}


@asynccontextmanager
async def serving(
    environment: Mapping[str, str], workers: int = 1, worker: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Mesh, Any]]:
    async with mesh(workers, worker, router=environment) as m, channel_to(m.router.address) as channel:
        await eligible(channel, *(f"worker-{n + 1}" for n in range(workers)))
        yield m, router_pb2_grpc.RouterStub(channel)


def asked(name: str = "", prompt: str = "hello", **fields: Any) -> pb.SubmitGenerationRequest:
    return pb.SubmitGenerationRequest(request=generation_pb2.GenerateRequest(prompt=prompt), request_id=name, **fields)


async def ended(stub: Any, name: str, within_s: float = 20.0) -> pb.Generation:
    """Wait for the end of a job, over whatever happens to routers."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            job: pb.Generation = await stub.GetGeneration(pb.GetGenerationRequest(request_id=name), timeout=5)
            if job.state > pb.GENERATION_STATE_RUNNING:
                return job
        except grpc.aio.AioRpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error
            job = pb.Generation()
        assert time.monotonic() < until_s, job
        await asyncio.sleep(0.05)


async def running(stub: Any, name: str) -> pb.Generation:
    async with asyncio.timeout(10):
        while True:
            job: pb.Generation = await stub.GetGeneration(pb.GetGenerationRequest(request_id=name))
            if job.state == pb.GENERATION_STATE_RUNNING:
                return job
            await asyncio.sleep(0.02)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def watched(
    stub: Any, name: str, attempt: int = 0, offset: int = 0, until: int | None = None
) -> tuple[list[generation_pb2.Delta], pb.Generation | None, int]:
    """Deltas of the newest attempt, the job as it was told last, and the attempt; with `until` after so many tokens."""
    deltas: list[generation_pb2.Delta] = []
    job = None
    call = stub.WatchGeneration(pb.WatchGenerationRequest(request_id=name, attempt=attempt, offset=offset))
    try:
        async for message in call:
            if attempt and message.attempt != attempt:
                deltas.clear()
            attempt = message.attempt
            if message.HasField("generation"):
                job = message.generation
            else:
                deltas.append(message.delta)
                if until is not None and message.delta.offset + message.delta.token_count >= until:
                    break
    finally:
        call.cancel()
    return deltas, job, attempt


async def test_a_job_is_answered_and_its_answer_is_the_one_that_a_watcher_saw(store: dict[str, str]) -> None:
    async with serving(store) as (_, stub):
        job = await stub.SubmitGeneration(asked("a"))
        assert job.request_id == "a"
        assert job.priority == generation_pb2.PRIORITY_BATCH
        deltas, last, _ = await watched(stub, "a")
        assert last is not None
        assert last.state == pb.GENERATION_STATE_SUCCEEDED
        assert last.result.text == "".join(delta.text for delta in deltas) != ""
        assert list(last.result.token_ids) == [i for delta in deltas for i in delta.token_ids]
        assert last.result.finished.usage.completion_tokens == len(last.result.token_ids) == 20
        assert last.attempts == 1
        assert await ended(stub, "a") == last
        again, same, _ = await watched(stub, "a", offset=7)
        assert same == last
        assert again[0].offset == 7
        assert again == deltas[len(deltas) - len(again) :]


async def test_a_name_belongs_to_one_request(store: dict[str, str]) -> None:
    async with serving(store, workers=0) as (_, stub):
        first = await stub.SubmitGeneration(asked("a"))
        assert await stub.SubmitGeneration(asked("a")) == first
        error = await refused(stub.SubmitGeneration(asked("a", prompt="other")))
        assert error.code() == grpc.StatusCode.ALREADY_EXISTS
        assert b"generation" in dict(error.trailing_metadata())["grpc-status-details-bin"]
        one, other = await stub.SubmitGeneration(asked()), await stub.SubmitGeneration(asked())
        assert one.request_id != other.request_id


async def test_what_cannot_be_a_job_is_refused_with_the_field(store: dict[str, str]) -> None:
    async with serving(store, workers=0) as (_, stub):
        wrong = [
            pb.SubmitGenerationRequest(),
            asked("x" * 129),
            asked("a", expire_after=Duration()),
            pb.SubmitGenerationRequest(request=generation_pb2.GenerateRequest(prompt="x", attempt=1)),
            pb.SubmitGenerationRequest(
                request=generation_pb2.GenerateRequest(prompt="x", continuation=generation_pb2.Continuation())
            ),
        ]
        for request in wrong:
            error = await refused(stub.SubmitGeneration(request))
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        for call, request in (
            (stub.GetGeneration, pb.GetGenerationRequest(request_id="nobody")),
            (stub.CancelGeneration, pb.CancelGenerationRequest(request_id="nobody")),
            (stub.DeleteGeneration, pb.DeleteGenerationRequest(request_id="nobody")),
            (stub.RequeueGeneration, pb.RequeueGenerationRequest(request_id="nobody")),
        ):
            assert (await refused(call(request))).code() == grpc.StatusCode.NOT_FOUND


async def test_a_router_without_a_store_says_so() -> None:
    async with serving({}, workers=0) as (_, stub):
        error = await refused(stub.SubmitGeneration(asked("a")))
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED
        assert "router.jobs.store" in (error.details() or "")


async def test_a_cancelled_job_stops_at_its_worker(store: dict[str, str]) -> None:
    async with serving(store, worker=SLOW | {"LADR_WORKER__SIMULATED__ANSWER_TOKENS": "2000"}) as (m, stub):
        await stub.SubmitGeneration(asked("a"))
        await watched(stub, "a", until=3)
        job = await stub.CancelGeneration(pb.CancelGenerationRequest(request_id="a"))
        assert job.state == pb.GENERATION_STATE_CANCELLED
        async with asyncio.timeout(2):
            while "ladr_worker_running 0.0" not in m.workers[0].scrape():  # noqa: ASYNC110  # another process's state
                await asyncio.sleep(0.02)
        await stub.DeleteGeneration(pb.DeleteGenerationRequest(request_id="a"))
        assert (
            await refused(stub.GetGeneration(pb.GetGenerationRequest(request_id="a")))
        ).code() == grpc.StatusCode.NOT_FOUND


async def test_a_storm_of_cancellations_leaves_nothing_behind(
    store: dict[str, str], request: pytest.FixtureRequest
) -> None:
    rng = random.Random(3)
    names = [f"job-{n}" for n in range(200)]
    async with serving(store) as (m, stub):

        async def one(name: str) -> None:
            await asyncio.sleep(rng.random())
            await stub.SubmitGeneration(asked(name))
            await asyncio.sleep(2 * rng.random())
            await stub.CancelGeneration(pb.CancelGenerationRequest(request_id=name))

        await asyncio.gather(*(one(name) for name in names))
        states = {(await ended(stub, name)).state for name in names}
        assert states == {pb.GENERATION_STATE_CANCELLED, pb.GENERATION_STATE_SUCCEEDED}
        idle = (
            "ladr_jobs_running_here 0.0",
            "ladr_router_open_streams 0.0",
            'ladr_router_in_flight{worker="worker-1"} 0.0',
        )
        async with asyncio.timeout(5):
            while not all(line in m.router.scrape() for line in idle):  # noqa: ASYNC110  # another process's state
                await asyncio.sleep(0.05)
        for name in names:
            await stub.DeleteGeneration(pb.DeleteGenerationRequest(request_id=name))
        assert not (await stub.ListGenerations(pb.ListGenerationsRequest())).generations
    if store["LADR_ROUTER__JOBS__STORE"] == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        with server.client() as client:
            kept = {key.decode().rpartition("}:")[2] for key in client.keys("{ladr:jobs}*")}
            assert kept == {"seq", "queue:1", "queue:2", "queue:3"}
            assert client.xlen("{ladr:jobs}:queue:3") == 0
            assert client.xpending("{ladr:jobs}:queue:3", "routers")["pending"] == 0


async def test_a_job_of_three_leases_is_attempted_once(store: dict[str, str]) -> None:
    long = SLOW | {"LADR_WORKER__SIMULATED__ANSWER_TOKENS": "70"}  # 3.5 s, of a lease of 1 s
    async with serving(store, worker=long) as (m, stub), AsyncExitStack() as stack:
        other = Process("router", {**store, "LADR_ROUTER__BUS": m.bus.address})
        stack.push_async_callback(other.kill)
        await other.start()
        await stub.SubmitGeneration(asked("a"))
        job = await ended(stub, "a")
        assert job.state == pb.GENERATION_STATE_SUCCEEDED
        assert job.finished_at.ToMilliseconds() - job.started_at.ToMilliseconds() > 3000
        assert (job.attempts, job.redeliveries) == (1, 0)


async def test_a_watcher_goes_on_at_another_router_when_its_own_is_killed(store: dict[str, str]) -> None:
    async with serving(store, worker=SLOW) as (m, stub), AsyncExitStack() as stack:
        other = Process("router", {**store, "LADR_ROUTER__BUS": m.bus.address})
        stack.push_async_callback(other.kill)
        await other.start()
        channel = await stack.enter_async_context(channel_to(other.address))
        await eligible(channel, "worker-1")
        there = router_pb2_grpc.RouterStub(channel)
        names = [f"job-{n}" for n in range(4)]
        for name in names:
            await stub.SubmitGeneration(asked(name))
        seen, _, attempt = await watched(stub, names[0], until=5)
        m.router.send(signal.SIGKILL)
        await m.router.ended()
        had = seen[-1].offset + seen[-1].token_count
        rest, last, now = await watched(there, names[0], attempt, had)
        assert last is not None
        assert last.state == pb.GENERATION_STATE_SUCCEEDED
        whole = [*seen, *rest] if now == attempt else rest
        assert "".join(delta.text for delta in whole) == last.result.text
        assert whole[0].offset == 0
        jobs = [await ended(there, name) for name in names]
        assert all(job.state == pb.GENERATION_STATE_SUCCEEDED for job in jobs)
        assert all(job.attempts == 1 + job.redeliveries for job in jobs)


async def test_a_router_that_was_frozen_for_longer_than_a_lease_adds_no_second_result(store: dict[str, str]) -> None:
    async with serving(store, worker=SLOW) as (m, stub), AsyncExitStack() as stack:
        await stub.SubmitGeneration(asked("a"))
        await watched(stub, "a", until=3)
        m.router.send(signal.SIGSTOP)
        other = Process("router", {**store, "LADR_ROUTER__BUS": m.bus.address})
        stack.push_async_callback(other.kill)
        await other.start()
        there = router_pb2_grpc.RouterStub(await stack.enter_async_context(channel_to(other.address)))
        job = await ended(there, "a")
        assert (job.state, job.attempts, job.redeliveries) == (pb.GENERATION_STATE_SUCCEEDED, 2, 1)
        m.router.send(signal.SIGCONT)
        async with asyncio.timeout(10):
            while 'ladr_jobs_attempts_total{outcome="stale"} 1.0' not in m.router.scrape():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert await ended(stub, "a") == job


async def test_jobs_wait_for_their_time_and_are_of_no_use_after_it(store: dict[str, str]) -> None:
    async with serving(store) as (_, stub):
        later = Timestamp()
        later.FromMilliseconds(int(time.time() * 1000) + 1500)
        job = await stub.SubmitGeneration(asked("later", not_before=later))
        assert job.state == pb.GENERATION_STATE_SCHEDULED
        short = asked("short", not_before=later, expire_after=Duration(nanos=300_000_000))
        await stub.SubmitGeneration(short)
        assert (await ended(stub, "short")).state == pb.GENERATION_STATE_EXPIRED
        done = await ended(stub, "later")
        assert done.state == pb.GENERATION_STATE_SUCCEEDED
        assert done.started_at.ToMilliseconds() >= later.ToMilliseconds()


async def test_a_job_that_always_fails_is_a_dead_letter_and_can_be_tried_again(store: dict[str, str]) -> None:
    breaks = {"LADR_WORKER__SIMULATED__FAIL_RATIO": "1"}
    async with serving(store | {"LADR_ROUTER__JOBS__ATTEMPTS": "2"}, worker=breaks) as (_, stub):
        await stub.SubmitGeneration(asked("a"))
        job = await ended(stub, "a")
        assert (job.state, job.attempts) == (pb.GENERATION_STATE_DEAD, 2)
        assert job.error.reason in ("ENGINE_FAILED", "NO_WORKER")  # its only worker is left alone after two failures
        dead = await stub.ListGenerations(pb.ListGenerationsRequest(state=pb.GENERATION_STATE_DEAD))
        assert [job.request_id for job in dead.generations] == ["a"]
        again = await stub.RequeueGeneration(pb.RequeueGenerationRequest(request_id="a"))
        assert again.state == pb.GENERATION_STATE_QUEUED


async def test_a_wrong_request_is_given_up_at_once(store: dict[str, str]) -> None:
    async with serving(store) as (_, stub):
        wrong = asked("a")
        wrong.request.sampling.temperature = 99
        await stub.SubmitGeneration(wrong)
        job = await ended(stub, "a")
        assert (job.state, job.attempts, job.error.reason) == (pb.GENERATION_STATE_DEAD, 1, "INVALID_REQUEST")


async def test_a_stream_of_submissions_is_kept_and_says_what_it_refused(store: dict[str, str]) -> None:
    async with serving(store, workers=0) as (m, stub):

        async def requests() -> AsyncIterator[pb.SubmitGenerationRequest]:
            for n in range(500):
                yield asked(f"job-{n:03}")
            yield asked("job-000", prompt="other")
            yield asked("job-001")
            yield pb.SubmitGenerationRequest(request_id="empty")

        answer = await stub.SubmitGenerations(requests())
        assert (answer.accepted, answer.existing, answer.refused) == (500, 1, 2)
        assert {(refusal.index, refusal.error.reason) for refusal in answer.refusals} == {
            (500, "ALREADY_EXISTS"),
            (502, "INVALID_REQUEST"),
        }
        names: list[str] = []
        token = ""
        while True:
            page = await stub.ListGenerations(pb.ListGenerationsRequest(page_size=150, page_token=token))
            names += [job.request_id for job in page.generations]
            token = page.next_page_token
            if not token:
                break
        assert names == [f"job-{n:03}" for n in range(500)]
        async with asyncio.timeout(5):
            while not re.search(r'^ladr_jobs\{state="queued"\} 500.0', m.router.scrape(), re.M):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def test_each_attempt_is_a_span_that_is_linked_to_the_submission_and_tells_no_content(tmp_path: Path) -> None:
    receiver = Receiver()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    environment = {
        "LADR_ROUTER__JOBS__STORE": "sqlite",
        "LADR_ROUTER__JOBS__PATH": str(tmp_path / "jobs.db"),
        "LADR_TELEMETRY__OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
    }
    try:
        async with serving(environment) as (m, stub):
            await stub.SubmitGeneration(asked("a", prompt=CANARY))
            await ended(stub, "a")
            names: dict[str, Any] = {}
            async with asyncio.timeout(10):
                while not {"job attempt", "ladr.v1.Router/SubmitGeneration", "attempt"} <= names.keys():
                    await asyncio.sleep(0.1)
                    names = {span.name: span for span in receiver.spans}
            assert CANARY not in m.router.log
    finally:
        await server.stop(None)
    attempt, submission = names["job attempt"], names["ladr.v1.Router/SubmitGeneration"]
    assert [link.span_id for link in attempt.links] == [submission.span_id]
    assert attempt.trace_id != submission.trace_id
    assert names["attempt"].parent_span_id == attempt.span_id
    assert CANARY not in str(receiver.spans)


async def test_a_router_that_is_stopped_gives_its_jobs_back(store: dict[str, str]) -> None:
    quick = store | {"LADR_ROUTER__DRAIN_GRACE": "500ms", "LADR_ROUTER__JOBS__LEASE": "1m"}
    async with serving(quick, worker=SLOW | {"LADR_WORKER__SIMULATED__ANSWER_TOKENS": "100"}) as (m, stub):
        await stub.SubmitGeneration(asked("a"))
        await running(stub, "a")
        m.router.send(signal.SIGTERM)
        assert await m.router.ended() == 0
        await m.router.start()
        job = await ended(stub, "a")
        assert (job.state, job.attempts, job.redeliveries) == (pb.GENERATION_STATE_SUCCEEDED, 2, 0)
