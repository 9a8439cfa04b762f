"""ladr.v1.Router on the wire: translates, decides nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

import grpc

from ladr.errors import InvalidRequest, NotFound, Unreachable
from ladr.request import EDGE_LATENCY
from ladr.routing.router import Router
from ladr.routing.row import Row
from ladr.v1 import router_pb2, worker_pb2, worker_pb2_grpc
from services.common.rpc import stream_method, time_left, unary_method
from services.router.routes import Routes
from services.router.scaling import Scaling
from services.router.splits import Splits

NAME = "ladr.v1.Router"
_LONGEST_EDGE_MS = 60_000.0
_DRAIN_S = 5.0


class RouterServicer:
    """The methods of ladr.v1.Router."""

    def __init__(self, router: Router, routes: Routes, scaling: Scaling, splits: Splits) -> None:
        self._router = router
        self._routes = routes
        self._scaling = scaling
        self._splits = splits

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        return {
            "Generate": grpc.unary_stream_rpc_method_handler(self.generate),  # bytes in, bytes out
            "WatchRoutes": grpc.unary_stream_rpc_method_handler(  # tables come serialized
                self.watch_routes, router_pb2.WatchRoutesRequest.FromString
            ),
            "WatchScale": stream_method(self.watch_scale, router_pb2.WatchScaleRequest),
            "ListWorkers": unary_method(self.list_workers, router_pb2.ListWorkersRequest),
            "GetWorker": unary_method(self.get_worker, router_pb2.GetWorkerRequest),
            "GetSplit": unary_method(self.get_split, router_pb2.GetSplitRequest),
            "SetSplit": unary_method(self.set_split, router_pb2.SetSplitRequest),
            "DrainWorker": unary_method(self.drain_worker, router_pb2.DrainWorkerRequest),
        }

    def generate(self, raw: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        return self._router.generate(raw, time_left(context), edge_latency_s(context.invocation_metadata()))

    def watch_routes(
        self, request: router_pb2.WatchRoutesRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        model = self._router.served(request.model) if request.model else ""
        return self._routes.watch(model, request.reports, request.changes_only)

    def watch_scale(
        self, request: router_pb2.WatchScaleRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[router_pb2.ScaleAdvice]:
        return self._scaling.watch(self._router.served(request.model) if request.model else "")

    async def list_workers(
        self, request: router_pb2.ListWorkersRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.ListWorkersResponse:
        if not 0 <= request.page_size <= 1000:
            raise InvalidRequest("page_size must be 1 to 1000, or 0 for 100", field="page_size")
        model = self._router.served(request.model) if request.model else ""
        rows = [
            row
            for row in self._router.board.rows()
            if row.worker_id > request.page_token and (not model or model in row.models)
        ]
        page = rows[: request.page_size or 100]
        routes = {route.worker_id: route for route in self._routes.fresh().routes}
        return router_pb2.ListWorkersResponse(
            workers=[self._info(row, routes.get(row.worker_id)) for row in page],
            next_page_token=page[-1].worker_id if len(page) < len(rows) else "",
        )

    async def get_worker(
        self, request: router_pb2.GetWorkerRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.WorkerInfo:
        row = self._row(request.worker_id)
        return self._info(row, self._route_of(row))

    async def drain_worker(
        self, request: router_pb2.DrainWorkerRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.WorkerInfo:
        row = self._row(request.worker_id)
        with self._router.channels.to(row.report.address) as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            try:
                report = await stub.Drain(worker_pb2.DrainRequest(undo=request.undo), timeout=_DRAIN_S)
            except grpc.aio.AioRpcError as error:
                raise Unreachable(f"worker {row.worker_id} does not answer ({error.code().name})") from error
        row.drains(not request.undo)
        info = self._info(row, self._route_of(row))
        info.report.CopyFrom(report)
        return info

    async def get_split(
        self, request: router_pb2.GetSplitRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.Split:
        return self._splits.get(request.alias)

    async def set_split(
        self, request: router_pb2.SetSplitRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.Split:
        return self._splits.set(request.alias, request.shares)

    def _row(self, worker_id: str) -> Row:
        row = self._router.board.get(worker_id)
        if row is None:
            raise NotFound("no such worker; ListWorkers names them", resource=("worker", worker_id[:64]))
        return row

    def _route_of(self, row: Row) -> router_pb2.Route | None:
        return next((route for route in self._routes.fresh().routes if route.worker_id == row.worker_id), None)

    def _info(self, row: Row, route: router_pb2.Route | None) -> router_pb2.WorkerInfo:
        board = self._router.board
        now_s = time.monotonic()
        reason = board.ineligible(row, now_s)
        info = router_pb2.WorkerInfo(
            report=row.report,
            eligible=not reason,
            ineligible_reason=reason,
            in_flight=row.in_flight,
            route=route,
        )
        info.age.FromTimedelta(timedelta(seconds=max(0.0, board.age_s(row, now_s))))
        return info


def edge_latency_s(metadata: Iterable[tuple[str, str | bytes]] | None) -> float:
    """What the client says of its way to here, in seconds; 0 if it says nothing.

    Raises: InvalidRequest: that is no number of milliseconds.
    """
    for key, value in metadata or ():
        if key == EDGE_LATENCY:
            try:
                edge_ms = float(value)
            except ValueError:
                edge_ms = -1.0
            if not 0 <= edge_ms <= _LONGEST_EDGE_MS:
                raise InvalidRequest(f"metadata {EDGE_LATENCY}: give milliseconds, 0 to {_LONGEST_EDGE_MS:.0f}")
            return edge_ms / 1000
    return 0.0
