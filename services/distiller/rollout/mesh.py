"""What a roll-out asks of the router and of workers. Every error is a LadrError; each call has its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from ladr.channel import client_options
from ladr.errors import NotFound, WrongState
from ladr.failure import call_failed
from ladr.v1 import fleet_pb2, router_pb2, worker_pb2
from ladr.v1.router_pb2_grpc import RouterStub
from ladr.v1.worker_pb2_grpc import WorkerStub
from services.distiller.rollout.counts import Counts, Times
from services.distiller.rollout.record import Shares

_CALL_S = 5.0
_UNLOAD_S = 60.0
_PAGE = 1000


@dataclass(frozen=True)
class Sharing:
    """How a name is shared, and how its models have done, by name."""

    shares: Shares
    counts: Mapping[str, Counts]


class Mesh:
    """One router and the workers that it knows. `close` it."""

    def __init__(self, router: str) -> None:
        self._router = router
        self._channel = grpc.aio.insecure_channel(router, options=client_options())
        self._stub = RouterStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def workers(self) -> dict[str, fleet_pb2.WorkerReport]:
        """All workers by id, as they reported last."""
        found: dict[str, fleet_pb2.WorkerReport] = {}
        request = router_pb2.ListWorkersRequest(page_size=_PAGE)
        while True:
            page = await self._ask(self._stub.ListWorkers, request)
            found |= {info.report.worker_id: info.report for info in page.workers}
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    async def meant(self, name: str) -> str:
        """The name that is shared if this one is: itself, or what it is an alias of."""
        try:
            split = await self._ask(self._stub.GetSplit, router_pb2.GetSplitRequest(alias=name))
        except NotFound as none:
            return none.resource[1] if none.resource else name
        return str(split.alias)

    async def sharing(self, name: str) -> Sharing | None:
        """How a name is shared. None: it is not."""
        try:
            return _sharing(await self._ask(self._stub.GetSplit, router_pb2.GetSplitRequest(alias=name)))
        except NotFound:
            return None

    async def share(self, name: str, shares: Shares | None) -> Sharing:
        """Share a name; None: as the router's configuration has it."""
        return _sharing(
            await self._ask(self._stub.SetSplit, router_pb2.SetSplitRequest(alias=name, shares=shares or {}))
        )

    async def load(self, address: str, model: str, source: str, timeout_s: float) -> None:
        """Load a model on a worker, to the end. Raises: AlreadyExists: it has one of that name."""
        async with _worker(address) as stub:
            call = stub.LoadModel(worker_pb2.LoadModelRequest(name=model, source=source), timeout=timeout_s)
            try:
                async for _ in call:
                    pass
            finally:
                call.cancel()

    async def unload(self, address: str, model: str) -> None:
        """Take a model out of a worker; its requests finish first. One that is not there is out.

        Raises: WrongState: it is being loaded, and can be taken out when that is done.
        """
        async with _worker(address) as stub:
            try:
                await stub.UnloadModel(worker_pb2.UnloadModelRequest(name=model), timeout=_UNLOAD_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                report = await stub.GetStatus(worker_pb2.GetStatusRequest(), timeout=_CALL_S)
                if any(one.name == model and one.state == fleet_pb2.MODEL_STATE_LOADING for one in report.models):
                    raise WrongState("it is still being loaded") from None

    async def _ask(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=_CALL_S)
        except grpc.aio.AioRpcError as error:
            raise call_failed(error, self._router) from None


@asynccontextmanager
async def _worker(address: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address, options=client_options()) as channel:
        try:
            yield WorkerStub(channel)
        except grpc.aio.AioRpcError as error:
            raise call_failed(error, address) from None


def _sharing(split: router_pb2.Split) -> Sharing:
    counts = {
        tally.model: Counts(
            tally.succeeded_total,
            tally.failed_total,
            _times(tally.time_to_first_token_logs),
            _times(tally.time_per_output_token_logs),
        )
        for tally in split.tallies
    }
    return Sharing(dict(split.shares), counts)


def _times(logs: router_pb2.LogTotals) -> Times:
    return Times(logs.count, logs.sum, logs.sum_of_squares)


def ready(report: fleet_pb2.WorkerReport, model: str) -> bool:
    """Whether a worker answers with a model."""
    return any(one.name == model and one.state == fleet_pb2.MODEL_STATE_READY for one in report.models)


def same(one: Shares | None, other: Shares | None) -> bool:
    """Whether two ways to share are one."""
    if one is None or other is None:
        return one is other
    sums = sum(one.values()), sum(other.values())
    return one.keys() == other.keys() and all(abs(one[name] / sums[0] - other[name] / sums[1]) < 1e-9 for name in one)
