"""ladr.v1.Worker on the wire: translates, decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from ladr.config import ModelSettings
from ladr.errors import InvalidRequest
from ladr.v1 import fleet_pb2, generation_pb2, worker_pb2
from services.common.rpc import stream_method, unary_method
from services.worker.worker import Worker

NAME = "ladr.v1.Worker"
MAX_CONTEXT_TOKENS = 1_000_000_000


class WorkerServicer:
    """The methods of ladr.v1.Worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        return {
            "Generate": stream_method(self.generate, generation_pb2.GenerateRequest),
            "GetStatus": unary_method(self.get_status, worker_pb2.GetStatusRequest),
            "LoadModel": stream_method(self.load_model, worker_pb2.LoadModelRequest),
            "UnloadModel": unary_method(self.unload_model, worker_pb2.UnloadModelRequest),
            "Drain": unary_method(self.drain, worker_pb2.DrainRequest),
        }

    def generate(
        self, request: generation_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        return self._worker.generate(request)

    async def get_status(
        self, request: worker_pb2.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.WorkerReport:
        return self._worker.report(0)

    def load_model(
        self, request: worker_pb2.LoadModelRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[fleet_pb2.ModelStatus]:
        if not 1 <= len(request.name.encode()) <= 128:
            raise InvalidRequest("a model's name has 1 to 128 bytes", field="name")
        if request.context_tokens > MAX_CONTEXT_TOKENS:
            raise InvalidRequest(f"context_tokens is over {MAX_CONTEXT_TOKENS}", field="context_tokens")
        if request.draft_tokens > 16:
            raise InvalidRequest("draft_tokens is over 16", field="draft_tokens")
        return self._worker.models.load(
            ModelSettings(
                name=request.name,
                source=request.source,
                context_tokens=request.context_tokens,
                draft=request.draft,
                **({"draft_tokens": request.draft_tokens} if request.draft_tokens else {}),
            )
        )

    async def unload_model(
        self, request: worker_pb2.UnloadModelRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.ModelStatus:
        return await self._worker.models.unload(request.name)

    async def drain(
        self, request: worker_pb2.DrainRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.WorkerReport:
        self._worker.drain(undo=request.undo)
        return self._worker.report(0)
