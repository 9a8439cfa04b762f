"""What every server offers beside its service, and the endings of a stream, through a real mesh with real tools."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ladr.status import from_rpc
from ladr.v1 import fleet_pb2, generation_pb2, router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.load import ask, channel_to, eligible
from tests.processes import Mesh, mesh

GRPCURL = str(Path(sys.executable).parent / "grpcurl")


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Mesh]:
    async with mesh(2) as m, channel_to(m.router.address) as channel:
        await eligible(channel, "worker-1", "worker-2")
        yield m


async def routable(channel: grpc.aio.Channel) -> None:
    async for answer in health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(service="ladr.v1.Router"), timeout=10
    ):
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return


async def grpcurl(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        GRPCURL, "-plaintext", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return output.decode()


async def test_grpcurl_lists_and_describes_every_service(fleet: Mesh) -> None:
    for process, name in ((fleet.router, "Router"), (fleet.bus, "MetricsBus"), (fleet.workers[0], "Worker")):
        listed = (await grpcurl(process.address, "list")).split()
        assert {f"ladr.v1.{name}", "grpc.health.v1.Health", "grpc.channelz.v1.Channelz"} <= set(listed)
        assert {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"} <= set(listed)
        assert "service" in await grpcurl(process.address, "describe", f"ladr.v1.{name}")


async def test_grpcurl_streams_started_deltas_and_one_finished(fleet: Mesh) -> None:
    output = await grpcurl("-d", '{"prompt":"Name three rivers."}', fleet.router.address, "ladr.v1.Router/Generate")
    events = [json.loads(part) for part in re.split(r"(?<=^\})\n", output.strip(), flags=re.M)]
    kinds = [next(iter(event)) for event in events]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert kinds.count("finished") == 1
    assert set(kinds[1:-1]) == {"delta"}


async def test_health_watch_tells_of_a_fleet_that_goes_away() -> None:
    async with mesh(1) as m, channel_to(m.router.address) as channel:
        seen: list[int] = []
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="ladr.v1.Router"))
        serving = health_pb2.HealthCheckResponse.SERVING
        async for answer in call:
            seen.append(answer.status)
            if answer.status == serving:
                m.workers[0].send(signal.SIGKILL)
            elif serving in seen:
                break
        call.cancel()
        assert seen[-1] == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_channelz_answers(fleet: Mesh) -> None:
    async with channel_to(fleet.router.address) as channel:
        answer = await channelz_pb2_grpc.ChannelzStub(channel).GetServers(channelz_pb2.GetServersRequest())
    assert len(answer.server) == 1


@pytest.mark.parametrize(
    ("fields", "code", "reason", "field"),
    [
        ({"prompt": ""}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "prompt"),
        ({"model": "none"}, grpc.StatusCode.NOT_FOUND, "NOT_FOUND", ""),
        (
            {"sampling": generation_pb2.Sampling(top_p=7)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            "sampling.top_p",
        ),
        ({"prompt": "x" * 40_000}, grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG", "prompt"),
    ],
)
async def test_a_wrong_request_gets_a_rich_error(
    fleet: Mesh, fields: dict[str, object], code: grpc.StatusCode, reason: str, field: str
) -> None:
    async with channel_to(fleet.router.address) as channel:
        request = generation_pb2.GenerateRequest(**{"prompt": "x", **fields})
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in router_pb2_grpc.RouterStub(channel).Generate(request):
                pass
    error = from_rpc(failed.value.code(), failed.value.details() or "", failed.value.trailing_metadata())
    assert (failed.value.code(), error.reason, error.field) == (code, reason, field)
    assert "127.0.0.1" not in error.message


async def test_each_ending_has_exactly_one_terminal_event(fleet: Mesh) -> None:
    async with channel_to(fleet.router.address) as channel:
        for sampling, reason in (
            (generation_pb2.Sampling(), generation_pb2.FINISH_REASON_STOP),
            (generation_pb2.Sampling(max_tokens=1), generation_pb2.FINISH_REASON_LENGTH),
            (generation_pb2.Sampling(max_tokens=5), generation_pb2.FINISH_REASON_LENGTH),
            (generation_pb2.Sampling(stop=[" "]), generation_pb2.FINISH_REASON_STOP_SEQUENCE),
        ):
            request = generation_pb2.GenerateRequest(prompt="x", sampling=sampling)
            events = [e async for e in router_pb2_grpc.RouterStub(channel).Generate(request)]
            assert [e.WhichOneof("event") for e in events].count("finished") == 1
            assert events[-1].finished.reason == reason
            assert events[-1].finished.usage.completion_tokens == sum(e.delta.token_count for e in events)


async def test_a_deadline_ends_the_request_at_the_engine_too(fleet: Mesh) -> None:
    async with channel_to(fleet.router.address) as channel:
        sampling = generation_pb2.Sampling(max_tokens=1000, stop=["never"])
        outcome = await ask(channel, timeout_s=0.03, sampling=sampling)
        assert outcome.error == grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.sleep(0.25)
        for worker in fleet.workers:
            async with channel_to(worker.address) as direct:
                status = await worker_pb2_grpc.WorkerStub(direct).GetStatus(worker_pb2.GetStatusRequest())
                assert (status.running, status.queued) == (0, 0)


async def test_ten_thousand_random_model_names_add_no_series(fleet: Mesh) -> None:
    async with channel_to(fleet.router.address) as channel:
        await ask(channel, model="warm-up")
        before = {line.rsplit(" ", 1)[0] for line in fleet.router.scrape().splitlines() if not line.startswith("#")}
        for _ in range(20):
            names = [f"model-{random.getrandbits(64):x}" for _ in range(500)]
            outcomes = await asyncio.gather(*(ask(channel, model=name) for name in names))
            assert {o.error for o in outcomes} == {grpc.StatusCode.NOT_FOUND}
    after = {line.rsplit(" ", 1)[0] for line in fleet.router.scrape().splitlines() if not line.startswith("#")}
    assert after == before


async def test_metrics_have_the_fleet_and_no_gpu_where_there_is_none(fleet: Mesh) -> None:
    page = fleet.router.scrape()
    assert 'ladr_router_workers{eligible="yes"} 2.0' in page
    assert 'ladr_router_weight_ratio{worker="worker-1"}' in page
    assert "ladr_router_degraded 0.0" in page
    page = fleet.workers[0].scrape()
    assert "ladr_worker_slots 8.0" in page
    assert not re.search(r"^gpu_memory_used_bytes\{", page, re.M)


async def test_a_message_over_the_limit_is_refused_and_says_so() -> None:
    small = {"LADR_ROUTER__MAX_MESSAGE_BYTES": "1MiB"}
    async with mesh(1, router=small) as m, channel_to(m.router.address) as channel:
        outcome = await ask(channel, prompt="x" * (2 << 20))
        assert outcome.error == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in outcome.details
        assert "1048576" in outcome.details


async def test_a_prompt_of_ten_megabytes_passes_the_router(fleet: Mesh) -> None:
    async with channel_to(fleet.router.address) as channel:
        outcome = await ask(channel, prompt="x" * (10 << 20))
    assert outcome.error == grpc.StatusCode.INVALID_ARGUMENT  # longer than the context: the worker has read it


async def test_a_client_that_pings_every_ten_seconds_is_not_sent_away(fleet: Mesh) -> None:
    # The server's floor is under 10 s whatever the time: pings here come as fast as the core allows, five in a row.
    options = [
        ("grpc.keepalive_time_ms", 5_100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with grpc.aio.insecure_channel(fleet.router.address, options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        call = stub.Watch(health_pb2.HealthCheckRequest(service="ladr.v1.Router"))
        await call.read()
        await asyncio.sleep(17)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        assert not call.done()
        call.cancel()


async def test_workers_are_listed_in_pages_and_drained_and_taken_back(fleet: Mesh) -> None:
    async with channel_to(fleet.router.address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        first = await stub.ListWorkers(router_pb2.ListWorkersRequest(page_size=1))
        second = await stub.ListWorkers(router_pb2.ListWorkersRequest(page_size=1, page_token=first.next_page_token))
        assert [w.report.worker_id for p in (first, second) for w in p.workers] == ["worker-1", "worker-2"]
        assert second.next_page_token == ""
        drained = await stub.DrainWorker(router_pb2.DrainWorkerRequest(worker_id="worker-1"))
        assert drained.report.state == fleet_pb2.WORKER_STATE_DRAINING
        outcomes = await asyncio.gather(*(ask(channel) for _ in range(30)))
        assert {o.workers[0] for o in outcomes} == {"worker-2"}
        await stub.DrainWorker(router_pb2.DrainWorkerRequest(worker_id="worker-1", undo=True))
        await asyncio.sleep(0.5)
        outcomes = await asyncio.gather(*(ask(channel) for _ in range(30)))
        assert {o.workers[0] for o in outcomes} == {"worker-1", "worker-2"}
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.GetWorker(router_pb2.GetWorkerRequest(worker_id="nobody"))
        assert failed.value.code() == grpc.StatusCode.NOT_FOUND


async def test_routes_are_told_every_200_ms_with_weights_that_sum_to_one(fleet: Mesh) -> None:
    async with channel_to(fleet.router.address) as channel:
        call = router_pb2_grpc.RouterStub(channel).WatchRoutes(router_pb2.WatchRoutesRequest(model="sim"))
        tables = [await call.read() for _ in range(4)]
        call.cancel()
    assert [t.version - tables[0].version for t in tables] == [0, 1, 2, 3]
    assert all(abs(sum(route.weight for route in table.routes) - 1) < 1e-9 for table in tables)
    assert {route.worker_id for route in tables[0].routes} == {"worker-1", "worker-2"}


async def test_models_are_loaded_and_unloaded_while_the_mesh_runs(fleet: Mesh) -> None:
    async with channel_to(fleet.workers[0].address) as direct, channel_to(fleet.router.address) as channel:
        stub = worker_pb2_grpc.WorkerStub(direct)
        steps = [s async for s in stub.LoadModel(worker_pb2.LoadModelRequest(name="second"))]
        assert steps[-1].state == fleet_pb2.MODEL_STATE_READY
        await asyncio.sleep(0.5)
        outcome = await ask(channel, model="second")
        assert (outcome.workers, outcome.finished) == (["worker-1"], 1)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in stub.LoadModel(worker_pb2.LoadModelRequest(name="second")):
                pass
        assert failed.value.code() == grpc.StatusCode.ALREADY_EXISTS
        await stub.UnloadModel(worker_pb2.UnloadModelRequest(name="second"))
        await asyncio.sleep(0.5)
        assert (await ask(channel, model="second")).error == grpc.StatusCode.NOT_FOUND


async def test_an_alias_leads_to_its_model() -> None:
    async with (
        mesh(1, router={"LADR_ROUTER__ALIASES": '{"chat": "sim"}'}) as m,
        channel_to(m.router.address) as channel,
    ):
        await routable(channel)
        assert (await ask(channel, model="chat")).finished == 1


@pytest.mark.parametrize("service", ["router", "metrics", "worker"])
async def test_sigterm_finishes_streams_refuses_new_ones_and_exits_0(service: str) -> None:
    async with mesh(1, worker={"LADR_WORKER__SIMULATED__ANSWER_TOKENS": "200"}) as m:
        victim = {"router": m.router, "metrics": m.bus, "worker": m.workers[0]}[service]
        async with channel_to(m.router.address) as channel:
            await routable(channel)
            answer = asyncio.create_task(ask(channel))
            await asyncio.sleep(0.3)
            victim.send(signal.SIGTERM)
            outcome = await answer
            assert (outcome.error, outcome.finished) == (None, 1), outcome
            assert await victim.ended(10) == 0
            if service == "router":
                assert (await ask(channel, timeout_s=2)).error in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                )
