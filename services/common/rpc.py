"""Every call into a LADR server passes here: its span, its count, and its errors on the wire.

Servicers raise `LadrError`s and know nothing of gRPC status; their streams are async generators, closed here in every ending.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_status import rpc_status
from opentelemetry import context as otel_context
from opentelemetry import trace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ladr.errors import Internal, InvalidRequest, LadrError
from ladr.status import to_status
from services.common.telemetry import context_of, tracer

log = structlog.get_logger()

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class RpcInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Wraps the methods of `ladr.v1`; others (health, reflection, channelz) pass as they are."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "ladr_rpc_calls", "Calls that ended, by method and gRPC code", ["method", "code"], registry=registry
        )
        self._seconds = Histogram(
            "ladr_rpc_seconds", "How long calls took", ["method"], buckets=_SECONDS, registry=registry
        )
        self._active = Gauge("ladr_rpc_active", "Calls that are open", ["method"], registry=registry)
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no wrapped call is open (grpc's own stop may return before the handlers have cleaned up)."""
        await self._idle.wait()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if handler is None or not details.method.startswith("/ladr.v1."):
            return handler
        # One request is decoded in here, where a malformed one becomes an error like any other; grpc decodes streams of them.
        decode = handler.request_deserializer or bytes
        if handler.unary_unary:
            inner = handler.unary_unary

            async def unary(raw: bytes, context: Any) -> Any:
                async with self._call(details.method, context):
                    return await inner(_decoded(decode, raw), context)

            return grpc.unary_unary_rpc_method_handler(unary, None, handler.response_serializer)
        if handler.stream_unary:
            whole = handler.stream_unary

            async def collected(requests: Any, context: Any) -> Any:
                async with self._call(details.method, context):
                    return await whole(requests, context)

            return grpc.stream_unary_rpc_method_handler(
                collected, handler.request_deserializer, handler.response_serializer
            )

        inner = handler.unary_stream or handler.stream_stream
        many = handler.unary_stream is None

        async def stream(request: Any, context: Any) -> None:
            # A coroutine that writes, not a generator: a cancellation then always unwinds through this frame.
            async with self._call(details.method, context):
                messages = inner(request if many else _decoded(decode, request), context)
                async with aclosing(messages):
                    async for message in messages:
                        await context.write(message)

        if many:
            return grpc.stream_stream_rpc_method_handler(
                stream, handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_stream_rpc_method_handler(stream, None, handler.response_serializer)

    @asynccontextmanager
    async def _call(self, method: str, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        service, name = method.lstrip("/").split("/")
        parent = context_of(context.invocation_metadata())
        span = tracer.start_span(
            f"{service}/{name}",
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": name},
        )
        # Never detached: the context belongs to the task that grpc made for this call.
        otel_context.attach(trace.set_span_in_context(span, parent))
        began_s = time.monotonic()
        self._open += 1
        self._idle.clear()
        self._active.labels(method).inc()
        code = grpc.StatusCode.OK
        try:
            yield
        except LadrError as error:
            code = error.code
            span.set_attribute("error.type", error.reason)
            await context.abort_with_status(rpc_status.to_status(to_status(error)))
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something inside was cancelled, not this call: its client waits for a status.
            code = grpc.StatusCode.INTERNAL
            log.exception("call_broke", method=method)
            await context.abort_with_status(rpc_status.to_status(to_status(_broken())))
        except grpc.aio.AbortError:
            raise
        except Exception:
            code = grpc.StatusCode.INTERNAL
            log.exception("call_broke", method=method)
            await context.abort_with_status(rpc_status.to_status(to_status(_broken())))
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()
            self._active.labels(method).dec()
            self._calls.labels(method, code.name).inc()
            self._seconds.labels(method).observe(time.monotonic() - began_s)
            span.set_attribute("rpc.grpc.status_code", code.value[0])
            if code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
                span.set_status(trace.StatusCode.ERROR, code.name)
            span.end()


def _decoded(decode: Callable[[bytes], Any], raw: bytes) -> Any:
    try:
        return decode(raw)
    except (DecodeError, ValueError):
        raise InvalidRequest("the request is not what this method takes, or its text is not UTF-8") from None


def _broken() -> Internal:
    return Internal("the server failed on this call; its log has the reason under the trace id")


def unary_method(method: Any, request: Any) -> grpc.RpcMethodHandler:
    """Handler of a method that takes one message of the class `request` and gives one."""
    return grpc.unary_unary_rpc_method_handler(method, request.FromString, _serialize)


def stream_method(method: Any, request: Any) -> grpc.RpcMethodHandler:
    """Handler of a method that takes one message of the class `request` and gives a stream."""
    return grpc.unary_stream_rpc_method_handler(method, request.FromString, _serialize)


def collecting_method(method: Any, request: Any) -> grpc.RpcMethodHandler:
    """Handler of a method that takes a stream of the class `request` and gives one message."""
    return grpc.stream_unary_rpc_method_handler(method, request.FromString, _serialize)


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def time_left(context: grpc.aio.ServicerContext) -> float | None:
    """Seconds until the call's deadline, or None without one. grpc says "a century" for none."""
    left: float | None = context.time_remaining()
    return None if left is None or left > 1e8 else left
