"""The client's span: one a call, ended once in every ending, and never any content in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import ladr
from ladr import errors, tracing


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", provider.get_tracer("ladr"))
    return exporter


@pytest.fixture
async def client(router: Any) -> Any:
    async with ladr.Client(router.address) as client:
        yield client


async def test_a_span_tells_what_was_asked_and_how_it_ended(client: Any, router: Any, spans: Any) -> None:
    await client.complete("a secret", model="m", temperature=0.5)
    (span,) = spans.get_finished_spans()
    assert (span.name, span.kind) == ("chat m", trace.SpanKind.CLIENT)
    told = dict(span.attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == "m"
    assert told["gen_ai.request.temperature"] == 0.5
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (5, 3)
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert (told["rpc.system"], told["rpc.service"], told["rpc.method"]) == ("grpc", "ladr.v1.Router", "Generate")
    assert told["rpc.grpc.status_code"] == 0
    assert f"{told['server.address']}:{told['server.port']}" == router.address
    assert [event.name for event in span.events] == ["gen_ai.first_token"]
    assert "secret" not in span.to_json()
    assert "Seine" not in span.to_json()


async def test_the_trace_goes_on_at_the_server(client: Any, router: Any, spans: Any) -> None:
    await client.complete("x")
    (span,) = spans.get_finished_spans()
    sent = router.metadata[0]["traceparent"].split("-")
    assert sent[1:3] == [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"]


async def test_every_ending_ends_the_span_once(client: Any, router: Any, say: Any, spans: Any) -> None:
    async for event in client.generate("left after the end"):
        if isinstance(event, ladr.Finished):
            break
    router.hang = True
    async for _ in client.generate("left"):
        break
    stream = client.generate("dropped")
    del stream
    with pytest.raises(errors.DeadlineExceeded):
        await client.complete("late", timeout=0.1)
    task = asyncio.create_task(client.generate("cancelled").answer())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    router.hang, router.error = False, errors.NotFound("no such model")
    with pytest.raises(errors.NotFound):
        await client.complete("refused")
    router.error, router.script = None, [say.delta("b", 1)]
    with pytest.raises(errors.BrokenStream):
        await client.complete("broken")
    ended = spans.get_finished_spans()
    assert [span.attributes.get("error.type") for span in ended] == [
        None,
        "CANCELLED",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "CANCELLED",
        "NOT_FOUND",
        "BROKEN_STREAM",
    ]
    assert len({span.context.span_id for span in ended}) == 7


async def test_without_an_sdk_nothing_is_sent_and_nothing_fails(client: Any, router: Any) -> None:
    assert (await client.complete("x")).text
    assert "traceparent" not in router.metadata[0]
