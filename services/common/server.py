"""The life of a server process: bind, serve, tell its health, drain on SIGTERM, exit 0."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import structlog
import uvloop
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server
from prometheus_client import CollectorRegistry

from ladr import config
from ladr.channel import channel_options
from services.common import telemetry
from services.common.rpc import RpcInterceptor

log = structlog.get_logger()

Task = Callable[[], Coroutine[Any, Any, None]]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_NOTICE_S = 0.2  # between saying NOT_SERVING and refusing calls, so that watchers can turn away first


class CannotStart(Exception):
    """The process cannot start; the message is one line that says what to do."""


def server_options(max_message_bytes: int, share_port: bool = False) -> list[tuple[str, int]]:
    """Accepts a client's ping every 5 s also while nothing flows (a long prefill); the default floor is 300 s.

    `share_port`: other processes may listen on the port as well.
    """
    return [
        *channel_options(max_message_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_concurrent_streams", 100_000),
        ("grpc.so_reuseport", int(share_port)),
    ]


@dataclass
class Server:
    """One gRPC server with all that goes beside a service; `add` services, then `start`, and `stop` once."""

    settings: config.Server
    share_port: bool = False
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.rpc = RpcInterceptor(self.registry)
        options = server_options(self.settings.max_message_bytes, self.share_port)
        self.grpc = grpc.aio.server(interceptors=[self.rpc], options=options)
        self.health = health.aio.HealthServicer()
        self._names: list[str] = []
        self.port = 0
        self.http_port = 0
        self._http: Any = None

    def add(self, name: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        """Serve `name` ("ladr.v1.Router") by these method handlers."""
        self._names.append(name)
        self.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    async def start(self) -> None:
        """Bind both ports and serve; health is NOT_SERVING until `set_serving`.

        Raises: CannotStart: a port is in use.
        """
        for name in ("", *self._names):
            await self.health.set(name, NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc)
        channelz.add_channelz_servicer(self.grpc)
        self._add_reflection()
        host, port = self.settings.host, self.settings.port
        try:
            self.port = self.grpc.add_insecure_port(f"{host}:{port}")
        except RuntimeError:
            raise CannotStart(f"port {port} on {host} is in use or not ours; set another port") from None
        http = self.settings.http_port
        try:
            self._http, self.http_port = telemetry.serve_metrics(self.settings.http_host or host, http, self.registry)
        except OSError:
            raise CannotStart(f"HTTP port {http} on {host} is in use or not ours; set another http_port") from None
        await self.grpc.start()

    async def set_serving(self, serving: bool) -> None:
        """Tell by health whether requests are welcome, for the server and for each service."""
        for name in ("", *self._names):
            await self.health.set(name, SERVING if serving else NOT_SERVING)

    async def stop(self) -> None:
        """Say NOT_SERVING, refuse new calls, let open streams finish within the grace, then end the rest."""
        await self.health.enter_graceful_shutdown()
        if self.port:
            await asyncio.sleep(_NOTICE_S)
        await self.grpc.stop(self.settings.drain_grace.total_seconds())
        await self.rpc.idle()
        if self._http:
            await asyncio.to_thread(self._http.shutdown)
            self._http.server_close()

    def _add_reflection(self) -> None:
        names = [*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME, "grpc.channelz.v1.Channelz"]
        v1 = "grpc.reflection.v1.ServerReflection"
        servicer = reflection.aio.ReflectionServicer([*names, v1])
        add_ServerReflectionServicer_to_server(servicer, self.grpc)
        # The package serves v1alpha alone; v1 has the same messages under another name.
        info = grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        self.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(v1, {"ServerReflectionInfo": info}),))


async def serve(
    server: Server,
    stop: asyncio.Event,
    *,
    started: Task,
    background: Sequence[Task] = (),
    before_stop: Task | None = None,
) -> None:
    """Serve until `stop`; a background task that crashes ends everything.

    `started` runs once the ports are bound (it says when requests are welcome); `before_stop` after the stop was asked for
    and before calls are refused.

    Raises: CannotStart: a port is in use, or `started` says so.
    """
    await server.start()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(started()), *(group.create_task(_forever(task)) for task in background)]
            try:
                await stop.wait()
                if before_stop:
                    await before_stop()
            finally:
                await server.stop()
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as crashed:
        raise crashed.exceptions[0] from crashed


async def _forever(task: Task) -> None:
    await task()
    raise RuntimeError(f"background task {task!r} ended")


def run(service: str, main: Callable[[config.Settings, asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """The whole of a service's `__main__`: settings, logs, loop, signals, exit code (0 ended, 1 crashed, 2 misused)."""
    parser = argparse.ArgumentParser(prog=f"python -m services.{service}")
    parser.add_argument("--config", help="settings file; every key is an environment variable too")
    args = parser.parse_args()
    try:
        settings = config.load(args.config)
        telemetry.set_up_logs(settings.telemetry, service)
        traces = telemetry.set_up_traces(settings.telemetry, service)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_until_signal(main, settings))
        finally:
            if traces:
                traces.shutdown()
    except (CannotStart, config.ConfigError) as error:
        print(f"{service}: {error}", file=sys.stderr)  # noqa: T201  # for the person who started it
        sys.exit(2)


async def _until_signal(
    main: Callable[[config.Settings, asyncio.Event], Coroutine[Any, Any, None]], settings: config.Settings
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await main(settings, stop)
