"""Waits until a mesh takes requests, and tells how far each part of it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import grpc

from ladr.channel import client_options
from ladr.cli.keeper import Keeper
from ladr.cli.voice import Voice
from ladr.client import Client
from ladr.errors import DeadlineExceeded, LadrError, Unreachable
from ladr.v1.fleet_pb2 import MODEL_STATE_READY, WorkerReport
from ladr.v1.worker_pb2 import GetStatusRequest
from ladr.v1.worker_pb2_grpc import WorkerStub

_HEALTH = {"router": "ladr.v1.Router", "metrics": "ladr.v1.MetricsBus", "worker": "ladr.v1.Worker"}
_POLL_S = 0.1
_CALL_S = 2.0


async def mesh_ready(keepers: Sequence[Keeper], voice: Voice) -> None:
    """Wait until every process is ready and the router gives requests to every worker. Never gives up by itself."""
    for keeper in keepers:
        voice.state(keeper.child.name, "starting")
    async with asyncio.TaskGroup() as group:
        for keeper in keepers:
            group.create_task(_ready(keeper, voice))
    await _all_eligible(keepers)


async def process_ready(keeper: Keeper) -> None:
    """Wait until the process says by its health that requests are welcome; a worker, that its models are loaded."""
    async with Client(keeper.child.address) as client:
        while not keeper.was_ready:
            with suppress(Unreachable, DeadlineExceeded):
                await client.wait_ready(_CALL_S, _HEALTH[keeper.child.service])
                keeper.was_ready = True


async def _ready(keeper: Keeper, voice: Voice) -> None:
    """As `process_ready`, and show how far it is."""
    async with asyncio.TaskGroup() as group:
        showing = group.create_task(_show_loading(keeper, voice)) if keeper.child.service == "worker" else None
        await process_ready(keeper)
        if showing:
            showing.cancel()
    voice.state(keeper.child.name, "ready", 1.0)


async def _show_loading(keeper: Keeper, voice: Voice) -> None:
    async with grpc.aio.insecure_channel(keeper.child.address, options=client_options()) as channel:
        stub = WorkerStub(channel)
        while True:
            with suppress(grpc.aio.AioRpcError):
                report: WorkerReport = await stub.GetStatus(GetStatusRequest(), timeout=_CALL_S)
                if report.models:
                    voice.state(keeper.child.name, *_loading(report))
            await asyncio.sleep(_POLL_S)


def _loading(report: WorkerReport) -> tuple[str, float]:
    """What a worker is busy with, and the share of its models that is loaded."""
    names = [model.name for model in report.models if model.state != MODEL_STATE_READY]
    shares = [model.load_progress if model.state != MODEL_STATE_READY else 1.0 for model in report.models]
    return (f"loading {', '.join(names)}" if names else "loaded"), sum(shares) / len(shares)


async def _all_eligible(keepers: Sequence[Keeper]) -> None:
    wanted = {keeper.child.name for keeper in keepers if keeper.child.service == "worker"}
    address = next(keeper.child.address for keeper in keepers if keeper.child.service == "router")
    async with Client(address) as client:
        while True:
            with suppress(LadrError):
                known = await client.list_workers(timeout=_CALL_S)
                if wanted <= {info.report.worker_id for info in known if info.eligible}:
                    return
            await asyncio.sleep(_POLL_S)
