"""A mesh with workers for roll-outs, and distillers in this process that have a student to publish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc

from ladr import Client
from ladr.distill_calls import rollout_state
from ladr.v1 import distiller_pb2 as pb
from ladr.v1 import router_pb2, router_pb2_grpc, worker_pb2_grpc
from ladr.v1.worker_pb2 import GetStatusRequest, LoadModelRequest, UnloadModelRequest
from services.distiller.app import App
from services.distiller.machine import Job
from tests.distiller.distillers import distiller
from tests.load import channel_to, eligible
from tests.processes import SIMULATED, Process

JOB = "0190a3c4-0000-7000-8000-00000000beef"
STUDENT = "chat-0000beef"
QUICK = {"LADR_WORKER__SIMULATED__STEP": "2ms", "LADR_WORKER__SIMULATED__ANSWER_TOKENS": "3"}
WORKERS = {
    "good": {"LADR_WORKER__MODELS": '[{"name": "chat"}]'},
    "fresh": {"LADR_WORKER__MODELS": '[{"name": "other"}]'},
    "failing": {"LADR_WORKER__MODELS": '[{"name": "third"}]', "LADR_WORKER__SIMULATED__FAIL_RATIO": "0.7"},
    "slow": {"LADR_WORKER__MODELS": '[{"name": "fourth"}]', "LADR_WORKER__SIMULATED__STEP": "60ms"},
    "late": {"LADR_WORKER__MODELS": '[{"name": "sixth"}]', "LADR_WORKER__SIMULATED__LOAD": "1s"},
    "full": {"LADR_WORKER__MODELS": '[{"name": "fifth"}]', "LADR_WORKER__MAX_MODELS": "1"},
}
OWN = {"chat", "other", "third", "fourth", "fifth", "sixth"}


@dataclass
class Fleet:
    """A bus, a router, and workers by name."""

    router: Process
    workers: dict[str, Process]
    channel: grpc.aio.Channel

    async def split(self, name: str = "chat") -> dict[str, float] | None:
        """How a name is shared; None: it is not."""
        try:
            found = await router_pb2_grpc.RouterStub(self.channel).GetSplit(router_pb2.GetSplitRequest(alias=name))
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.NOT_FOUND
            return None
        return dict(found.shares)

    async def set_split(self, shares: dict[str, float], name: str = "chat") -> None:
        request = router_pb2.SetSplitRequest(alias=name, shares=shares)
        await router_pb2_grpc.RouterStub(self.channel).SetSplit(request)

    async def models(self, worker: str) -> set[str]:
        """What a worker says that it has."""
        async with channel_to(self.workers[worker].address) as channel:
            report = await worker_pb2_grpc.WorkerStub(channel).GetStatus(GetStatusRequest())
        return {model.name for model in report.models}

    async def clear(self) -> None:
        """Take out what is not in WORKERS, and wait until the router has heard of that."""
        for worker, process in self.workers.items():
            for model in await self.models(worker) - OWN:
                async with channel_to(process.address) as channel:
                    await worker_pb2_grpc.WorkerStub(channel).UnloadModel(UnloadModelRequest(name=model))
        async with asyncio.timeout(10):
            while await self._known_to_the_router() - OWN:  # noqa: ASYNC110  # another process's state
                await asyncio.sleep(0.02)

    async def _known_to_the_router(self) -> set[str]:
        found = await router_pb2_grpc.RouterStub(self.channel).ListWorkers(router_pb2.ListWorkersRequest())
        return {model.name for worker in found.workers for model in worker.report.models}

    async def load(self, worker: str, model: str) -> None:
        async with channel_to(self.workers[worker].address) as channel:
            async for _ in worker_pb2_grpc.WorkerStub(channel).LoadModel(LoadModelRequest(name=model)):
                pass


@asynccontextmanager
async def fleet(*names: str) -> AsyncIterator[Fleet]:
    """Those of WORKERS, or all of them, behind one router."""
    async with AsyncExitStack() as stack:

        def process(service: str, environment: dict[str, str]) -> Process:
            made = Process(service, environment)
            stack.push_async_callback(made.kill)
            return made

        bus = await process("metrics", {}).start()
        there = {"LADR_ROUTER__BUS": bus.address, "LADR_WORKER__BUS": bus.address}
        router = await process("router", {**there, "LADR_ROUTER__ALIASES": "assistant=chat"}).start()
        workers = {
            name: process("worker", {**SIMULATED, **QUICK, **there, **own, "LADR_WORKER__ID": name})
            for name, own in WORKERS.items()
            if name in (names or WORKERS)
        }
        await asyncio.gather(*(one.start() for one in workers.values()))
        channel = await stack.enter_async_context(channel_to(router.address))
        await eligible(channel, *workers)
        yield Fleet(router, workers, channel)


@asynccontextmanager
async def publisher(directory: Path, router: str | None, **settings: Any) -> AsyncIterator[tuple[App, Client]]:
    """A distiller in this process, with a job that has succeeded."""
    async with distiller(directory, router=router, **settings) as (app, client):
        if await app.store.get(JOB) is None:
            job = Job(JOB, "{}", "", 1, 1, state="succeeded", started_ms=1, finished_ms=2, student=f"students/{JOB}")
            await app.store.create(job)
        yield app, client


def request(stage_s: float = 0.2, name: str = "chat", timeout_s: float = 30, **fields: Any) -> pb.PublishStudentRequest:
    """Quick stages of a few requests."""
    made = pb.PublishStudentRequest(
        **{"id": JOB, "name": name, "workers": ["fresh"], "stage_requests": 5, "latency_ratio": 20, **fields}
    )
    made.stage_time.FromTimedelta(timedelta(seconds=stage_s))
    made.stage_timeout.FromTimedelta(timedelta(seconds=timeout_s))
    return made


async def until(
    client: Client, rollout_id: str, enough: Callable[[pb.Rollout], bool], within_s: float = 20
) -> pb.Rollout:
    """Wait until a roll-out is as is wished."""
    async with asyncio.timeout(within_s):
        while not enough(rollout := await client.get_rollout(rollout_id)):
            assert rollout_state(rollout) in ("loading", "running"), rollout
            await asyncio.sleep(0.02)
    return rollout


async def ended(client: Client, rollout_id: str) -> tuple[str, pb.Rollout]:
    """Wait for the end; gives the state and all of it."""
    rollout = await until(client, rollout_id, lambda one: rollout_state(one) not in ("loading", "running"))
    return rollout_state(rollout), rollout


async def staged(client: Client, rollout_id: str, share: float) -> pb.Rollout:
    """Wait until the student gets that share."""
    return await until(client, rollout_id, lambda one: one.share == share)
