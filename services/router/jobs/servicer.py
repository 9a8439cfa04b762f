"""The methods of ladr.v1.Router on jobs, on the wire: translates, decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
from google.protobuf import empty_pb2

from ladr.errors import NoJobs
from ladr.v1 import generations_pb2 as pb
from services.common.rpc import collecting_method, stream_method, unary_method
from services.router.jobs.service import Jobs


class JobsServicer:
    """`jobs`: None where this router keeps none; each method then says so."""

    def __init__(self, jobs: Jobs | None) -> None:
        self._jobs = jobs

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        return {
            "SubmitGeneration": unary_method(self.submit, pb.SubmitGenerationRequest),
            "SubmitGenerations": collecting_method(self.submit_all, pb.SubmitGenerationRequest),
            "GetGeneration": unary_method(self.get, pb.GetGenerationRequest),
            "WatchGeneration": stream_method(self.watch, pb.WatchGenerationRequest),
            "CancelGeneration": unary_method(self.cancel, pb.CancelGenerationRequest),
            "ListGenerations": unary_method(self.page, pb.ListGenerationsRequest),
            "DeleteGeneration": unary_method(self.delete, pb.DeleteGenerationRequest),
            "RequeueGeneration": unary_method(self.requeue, pb.RequeueGenerationRequest),
        }

    async def submit(self, request: pb.SubmitGenerationRequest, context: grpc.aio.ServicerContext) -> pb.Generation:
        return await self._kept().submit(request)

    async def submit_all(
        self, requests: AsyncIterator[pb.SubmitGenerationRequest], context: grpc.aio.ServicerContext
    ) -> pb.SubmitGenerationsResponse:
        return await self._kept().submit_all(requests)

    async def get(self, request: pb.GetGenerationRequest, context: grpc.aio.ServicerContext) -> pb.Generation:
        return await self._kept().get(request.request_id)

    def watch(
        self, request: pb.WatchGenerationRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchGenerationResponse]:
        return self._kept().watch(request.request_id, request.attempt, request.offset)

    async def cancel(self, request: pb.CancelGenerationRequest, context: grpc.aio.ServicerContext) -> pb.Generation:
        return await self._kept().cancel(request.request_id)

    async def page(
        self, request: pb.ListGenerationsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListGenerationsResponse:
        return await self._kept().page(request)

    async def delete(self, request: pb.DeleteGenerationRequest, context: grpc.aio.ServicerContext) -> empty_pb2.Empty:
        await self._kept().delete(request.request_id)
        return empty_pb2.Empty()

    async def requeue(self, request: pb.RequeueGenerationRequest, context: grpc.aio.ServicerContext) -> pb.Generation:
        return await self._kept().requeue(request.request_id)

    def _kept(self) -> Jobs:
        if self._jobs is None:
            raise NoJobs("this router keeps no jobs; set router.jobs.store to sqlite or redis")
        return self._jobs
