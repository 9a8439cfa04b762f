"""The client's span of one Generate call. OpenTelemetry's API alone: without an SDK in the process it costs nothing."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from ladr.answer import Assembly, reason_name
from ladr.errors import Cancelled, LadrError
from ladr.v1.generation_pb2 import GenerateRequest

tracer = trace.get_tracer("ladr")
_propagator = TraceContextTextMapPropagator()
_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "seed")


def span_metadata(span: trace.Span) -> tuple[tuple[str, str], ...]:
    """The W3C trace context that carries a span to the next server, as gRPC metadata."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return tuple(carrier.items())


class GenerateSpan:
    """From the request to the end of its stream, however that comes; `end` works once. Never any content.

    Source: OpenTelemetry's semantic conventions for GenAI clients and for RPC.
    """

    def __init__(self, request: GenerateRequest, address: str) -> None:
        operation = "text_completion" if request.raw else "chat"
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "ladr",
            "rpc.system": "grpc",
            "rpc.service": "ladr.v1.Router",
            "rpc.method": "Generate",
            **_server(address),
        }
        if request.model:
            attributes["gen_ai.request.model"] = request.model
        for name in _SAMPLING:
            if request.sampling.HasField(name):
                attributes[f"gen_ai.request.{name}"] = getattr(request.sampling, name)
        self._span = tracer.start_span(
            f"{operation} {request.model}".rstrip(), kind=trace.SpanKind.CLIENT, attributes=attributes
        )
        self._open = True

    def context(self) -> Context:
        """The context in which further spans are this one's children."""
        return trace.set_span_in_context(self._span)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The W3C trace context, for the call's metadata."""
        return span_metadata(self._span)

    def first_token(self) -> None:
        """Now the first token came."""
        self._span.add_event("gen_ai.first_token")

    def end(self, answer: Assembly, error: LadrError | None = None) -> None:
        """End the span, once: with what the answer told, and what went wrong."""
        if not self._open:
            return
        self._open = False
        span = self._span
        if answer.started is not None:
            span.set_attribute("gen_ai.response.model", answer.started.model)
            span.set_attribute("gen_ai.response.id", answer.started.request_id)
            span.set_attribute("ladr.worker_id", answer.started.worker_id)
        if answer.finished is not None:
            span.set_attribute("gen_ai.usage.input_tokens", answer.finished.usage.prompt_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", answer.finished.usage.completion_tokens)
            span.set_attribute("gen_ai.response.finish_reasons", [reason_name(answer.finished)])
        span.set_attribute("rpc.grpc.status_code", error.code.value[0] if error else 0)
        if error is not None:
            span.set_attribute("error.type", error.reason)
            if not isinstance(error, Cancelled):
                span.set_status(trace.StatusCode.ERROR, error.reason)
        span.end()


def _server(address: str) -> dict[str, AttributeValue]:
    """host:port as two attributes; any other target as it is."""
    host, _, port = address.rpartition(":")
    return {"server.address": host, "server.port": int(port)} if port.isdecimal() else {"server.address": address}
