"""ladr.v1.Distiller on the wire: translates, decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
from google.protobuf import empty_pb2

from ladr.v1 import distiller_pb2 as pb
from services.common.rpc import stream_method, unary_method
from services.distiller.rollout.service import Rollouts
from services.distiller.service import Jobs

NAME = "ladr.v1.Distiller"


class DistillerServicer:
    """The methods of ladr.v1.Distiller."""

    def __init__(self, jobs: Jobs, rollouts: Rollouts) -> None:
        self._jobs = jobs
        self._rollouts = rollouts

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
            "PublishStudent": unary_method(self.publish, pb.PublishStudentRequest),
            "GetRollout": unary_method(self.rollout, pb.GetRolloutRequest),
            "ListRollouts": unary_method(self.rollouts, pb.ListRolloutsRequest),
            "WatchRollout": stream_method(self.watch_rollout, pb.WatchRolloutRequest),
            "CancelRollout": unary_method(self.cancel_rollout, pb.CancelRolloutRequest),
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
        self._rollouts.check_free(request.id)
        await self._jobs.delete(request.id)
        return empty_pb2.Empty()

    async def report(self, request: pb.GetDistillReportRequest, context: grpc.aio.ServicerContext) -> pb.DistillReport:
        return await self._jobs.report(request.id, request.html)

    async def publish(self, request: pb.PublishStudentRequest, context: grpc.aio.ServicerContext) -> pb.Rollout:
        return await self._rollouts.publish(request)

    async def rollout(self, request: pb.GetRolloutRequest, context: grpc.aio.ServicerContext) -> pb.Rollout:
        return self._rollouts.get(request.id)

    async def rollouts(
        self, request: pb.ListRolloutsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListRolloutsResponse:
        return self._rollouts.list()

    def watch_rollout(
        self, request: pb.WatchRolloutRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.Rollout]:
        return self._rollouts.watch(request.id)

    async def cancel_rollout(self, request: pb.CancelRolloutRequest, context: grpc.aio.ServicerContext) -> pb.Rollout:
        return await self._rollouts.cancel(request.id)
