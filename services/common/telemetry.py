"""Logs, traces and the metrics page of a process. Set up once, at its start."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, MutableMapping
from typing import Any

import structlog
import uuid_utils
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, disable_created_metrics, start_http_server

from ladr.config import TelemetrySettings

_propagator = TraceContextTextMapPropagator()
_SCRAPE_S = 5.0
tracer = trace.get_tracer("ladr")


_QUIETER = {
    "httpx": logging.WARNING,  # one line a request, with the upstream's URL
    "torchao": logging.ERROR,  # kernels of GPUs that are not here
    "torch.utils._pytree": logging.ERROR,  # what torch says of torchao's own code
}


def quieten() -> None:
    """Leave out what libraries log that nobody can act on."""
    for name, level in _QUIETER.items():
        logging.getLogger(name).setLevel(level)


def set_up_logs(settings: TelemetrySettings, service: str) -> None:
    """One line an event on stderr, with the trace id where there is one; control bytes are escaped in both formats."""
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())

    def name_service(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["service"] = service  # on every thread, which context variables are not
        return event

    shared: list[structlog.types.Processor] = [
        name_service,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace,
        structlog.processors.format_exc_info,
    ]
    render: structlog.types.Processor = (
        structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False)
        if text
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _printable, render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    quieten()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def set_up_traces(settings: TelemetrySettings, service: str) -> Any:
    """Export spans by OTLP/gRPC if an endpoint is set; returns the provider to shut down, or None."""
    endpoint = settings.otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if not endpoint:
        return None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        resource=Resource.create({"service.name": f"ladr-{service}", "service.instance.id": str(uuid_utils.uuid7())}),
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
    )
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
    trace.set_tracer_provider(provider)
    return provider


def serve_metrics(host: str, port: int, registry: CollectorRegistry) -> tuple[Any, int]:
    """Serve /metrics from a thread of its own; returns the HTTP server, to be shut down, and its port.

    Raises: OSError: the port is in use.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the page, and nobody reads them
    server, _ = start_http_server(port, addr=host, registry=registry)
    server.RequestHandlerClass.timeout = _SCRAPE_S  # type: ignore[attr-defined]  # of each read: none holds a thread for ever
    return server, server.server_port


def context_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
    """The W3C trace context that a call brought in its metadata."""
    return _propagator.extract({key: value for key, value in metadata or () if isinstance(value, str)})


def _add_trace(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
    return event


def _printable(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape what a terminal would act on (JSON does it by itself; logfmt only for newlines)."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    return event
