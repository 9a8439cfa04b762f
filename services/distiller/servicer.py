"""ladr.v1.Distiller on the wire: translates, decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
from google.protobuf import empty_pb2

from ladr.v1 import distiller_pb2 as pb
from services.common.rpc import stream_method, unary_method
from services.distiller.service import Jobs

NAME = "ladr.v1.Distiller"


class DistillerServicer:
    """The methods of ladr.v1.Distiller."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        return {
            "CreateDistillJob": unary_method(self.create, pb.CreateDistillJobRequest),
            "GetDistillJob": unary_method(self.get, pb.GetDistillJobRequest),
            "ListDistillJobs": unary_method(self.page, pb.ListDistillJobsRequest),
            "WatchDistillJob": stream_method(self.watch, pb.WatchDistillJobRequest),
            "CancelDistillJob": unary_method(self.cancel, pb.CancelDistillJobRequest),
            "ResumeDistillJob": unary_method(self.resume, pb.ResumeDistillJobRequest),
            "DeleteDistillJob": unary_method(self.delete, pb.DeleteDistillJobRequest),
            "GetDistillReport": unary_method(self.report, pb.GetDistillReportRequest),
        }

    async def create(self, request: pb.CreateDistillJobRequest, context: grpc.aio.ServicerContext) -> pb.DistillJob:
        return await self._jobs.create(request.spec, request.request_id)

    async def get(self, request: pb.GetDistillJobRequest, context: grpc.aio.ServicerContext) -> pb.DistillJob:
        return await self._jobs.get(request.id)

    async def page(
        self, request: pb.ListDistillJobsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListDistillJobsResponse:
        return await self._jobs.page(request)

    def watch(
        self, request: pb.WatchDistillJobRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchDistillJobResponse]:
        return self._jobs.watch(request.id, request.from_start)

    async def cancel(self, request: pb.CancelDistillJobRequest, context: grpc.aio.ServicerContext) -> pb.DistillJob:
        return await self._jobs.cancel(request.id)

    async def resume(self, request: pb.ResumeDistillJobRequest, context: grpc.aio.ServicerContext) -> pb.DistillJob:
        return await self._jobs.resume(request.id)

    async def delete(self, request: pb.DeleteDistillJobRequest, context: grpc.aio.ServicerContext) -> empty_pb2.Empty:
        await self._jobs.delete(request.id)
        return empty_pb2.Empty()

    async def report(self, request: pb.GetDistillReportRequest, context: grpc.aio.ServicerContext) -> pb.DistillReport:
        return await self._jobs.report(request.id, request.html)
