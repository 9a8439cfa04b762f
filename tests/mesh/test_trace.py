"""One trace from the client to the engine, at a real OTLP receiver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from ladr import Client
from tests.processes import mesh

CANARY = "canary-7f3a"


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span that it is sent."""

    def __init__(self) -> None:
        self.spans: list[trace_pb2.Span] = []

    async def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> object:  # grpc's name
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def client_spans() -> Iterator[TracerProvider]:
    provider = TracerProvider()
    trace.set_tracer_provider(provider)
    yield provider
    provider.shutdown()


async def test_client_router_worker_and_engine_are_one_trace(client_spans: TracerProvider) -> None:
    receiver = Receiver()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        endpoint = f"http://127.0.0.1:{port}"
        client_spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
        async with mesh(1, everybody={"LADR_TELEMETRY__OTLP_ENDPOINT": endpoint}) as m:
            async with Client(m.router.address) as client:
                await client.wait_ready(10)
                await client.complete(prompt=CANARY)
            by_name: dict[str, trace_pb2.Span] = {}
            wanted = {"ladr.v1.Router/Generate", "attempt", "ladr.v1.Worker/Generate", "queue", "prefill", "decode"}
            async with asyncio.timeout(10):
                while not wanted <= by_name.keys():
                    await asyncio.to_thread(client_spans.force_flush)
                    await asyncio.sleep(0.1)
                    by_name.update({span.name: span for span in receiver.spans})
    finally:
        await server.stop(None)
    assert CANARY not in str(receiver.spans)
    root = next(s for s in receiver.spans if s.trace_id == by_name["decode"].trace_id and not s.parent_span_id)
    assert root.kind == trace_pb2.Span.SPAN_KIND_CLIENT
    attempt, at_router = (
        by_name["attempt"],
        next(
            s
            for s in receiver.spans
            if s.name == "ladr.v1.Router/Generate" and s.kind == trace_pb2.Span.SPAN_KIND_SERVER
        ),
    )
    at_worker = by_name["ladr.v1.Worker/Generate"]
    assert at_router.parent_span_id == root.span_id
    assert attempt.parent_span_id == at_router.span_id
    assert at_worker.parent_span_id == attempt.span_id
    for name in ("queue", "prefill", "decode"):
        assert by_name[name].parent_span_id == at_worker.span_id
        assert at_worker.start_time_unix_nano - 5e6 < by_name[name].start_time_unix_nano
        assert by_name[name].end_time_unix_nano < at_worker.end_time_unix_nano + 5e6
    assert len({s.trace_id for s in (root, at_router, attempt, at_worker, by_name["decode"])}) == 1
