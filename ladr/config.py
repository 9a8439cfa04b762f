"""The settings of every part of LADR: one `ladr.yaml`, every key also an environment variable.

`router.port` in the file is `LADR_ROUTER__PORT` in the environment; the environment wins. Values are frozen, in real units,
and read once, by each process's `__main__`. A mistake is a `ConfigError`: one line that names the place and the remedy.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator

ENV_PREFIX = "LADR_"
DEFAULT_FILE = "ladr.yaml"

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"


class ConfigError(Exception):
    """A setting is wrong. The message is one line that says which, where, and what to do."""


def _duration(value: object) -> object:
    """ "200ms", "1.5s", "5m" or a number of seconds."""
    if isinstance(value, bool):
        raise ValueError("give a duration such as 200ms or 1.5s")
    if isinstance(value, int | float):
        return timedelta(seconds=value)
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(us|ms|s|m|h)?\s*", value)
        if not match:
            raise ValueError("give a duration such as 200ms or 1.5s")
        return timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"])
    return value


def _bytes(value: object) -> object:
    """ "16MiB", "4KiB" or a number of bytes."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+)\s*(B|KiB|MiB|GiB)?\s*", value)):
        return int(match[1]) << {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}[match[2] or "B"]
    return value


def _list(value: object) -> object:
    """A list, or its members with commas between (as the environment gives them)."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _address(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/]+):\d{1,5}", value):
        raise ValueError("give host:port, such as 127.0.0.1:50052")
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration), Field(gt=timedelta(0))]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
Address = Annotated[str, BeforeValidator(_address)]
Addresses = Annotated[tuple[Address, ...], BeforeValidator(_list), Field(min_length=1)]
Name = Annotated[str, Field(pattern=_NAME)]


class Section(BaseModel):
    """A group of settings; frozen, and without keys that nobody reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Server(Section):
    """What every server has."""

    host: str = Field("127.0.0.1", description="address to listen on; loopback unless told otherwise")
    port: Port = Field(0, description="gRPC port; 0 takes a free one")
    http_port: Port = Field(0, description="HTTP port of /metrics; 0 takes a free one")
    max_message_bytes: Bytes = Field(64 << 20, description="largest gRPC message, each way")
    drain_grace: Duration = Field(timedelta(seconds=30), description="how long open streams may finish after SIGTERM")


class RouterSettings(Server):
    """Settings of the Router."""

    port: Port = Field(50051, description="gRPC port; 0 takes a free one")
    http_port: Port = Field(9090, description="HTTP port of /metrics; 0 takes a free one")
    bus: Addresses = Field(("127.0.0.1:50052",), description="MetricsBus instances; the first that answers is used")
    policy: Literal["ladr-weighted", "least-request", "round-robin"] = Field(
        "ladr-weighted", description="how a worker is picked"
    )
    alpha: float = Field(0.5, gt=0, description="weight of latency in the score")
    beta: float = Field(0.5, gt=0, description="weight of the queue in the score")
    theta: float = Field(0.7, ge=0, lt=1, description="share of the old value in each smoothing step")
    tick: Duration = Field(timedelta(milliseconds=200), description="how often scores are computed and published")
    ttl: Duration = Field(timedelta(seconds=1), description="a worker silent for so long gets nothing")
    default_model: str = Field("", description="model of requests that name none; empty: the only one served")
    aliases: dict[str, str] = Field({}, description="further names of models: alias → served name")
    max_streams: int = Field(4096, gt=0, description="most Generate streams at once")
    max_attempts: int = Field(4, gt=0, le=16, description="most workers tried for one request before its first token")
    retry_budget: float = Field(0.2, ge=0, le=1, description="retries allowed, as a share of requests")


class MetricsSettings(Server):
    """Settings of the MetricsBus."""

    port: Port = Field(50052, description="gRPC port; 0 takes a free one")
    http_port: Port = Field(9091, description="HTTP port of /metrics; 0 takes a free one")
    backend: Literal["memory", "redis"] = Field("memory", description="where reports are kept")
    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"), description="Redis, with its password: redis://:secret@host:6379/0"
    )
    redis_prefix: str = Field("ladr", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="first part of each Redis key")
    stream_length: int = Field(4096, gt=0, description="reports that the Redis stream holds, about")
    ttl: Duration = Field(timedelta(seconds=1), description="a worker silent for so long is gone")
    max_workers: int = Field(4096, gt=0, description="most workers that it holds")
    max_subscribers: int = Field(1024, gt=0, description="most subscribers at once")
    update_interval: Duration = Field(timedelta(milliseconds=50), description="least time between two updates")


class ModelSettings(Section):
    """A model that a worker loads at its start."""

    name: str = Field(min_length=1, max_length=128, description="served name")
    source: str = Field(
        "", description="path under the model root, hub name or upstream's name; empty: the bundled 135M chat model"
    )
    context_tokens: int = Field(0, ge=0, description="longest prompt and answer together; 0: the engine's setting")


class SimulatedSettings(Section):
    """The latency model of the `simulated` engine: step(b) = step · (1 + growth · (b − 1) / (slots − 1))."""

    step: Duration = Field(timedelta(milliseconds=10), description="decode step with one request")
    growth: float = Field(1.0, ge=0, description="how much longer a step is with all slots busy")
    prefill_tokens_per_s: float = Field(10_000.0, gt=0, description="prompt tokens read a second")
    answer_tokens: int = Field(64, gt=0, description="median length of an answer that no limit cuts")
    answer_sigma: float = Field(0.0, ge=0, description="log-normal spread of that length")
    load: Annotated[timedelta, BeforeValidator(_duration), Field(ge=timedelta(0))] = Field(
        timedelta(0), description="how long a model takes to load"
    )
    fail_ratio: float = Field(0.0, ge=0, le=1, description="share of requests that fail at once")
    seed: int = Field(0, ge=0, description="seed of lengths and failures")


class OpenAISettings(Section):
    """The upstream of the `openai` engine."""

    base_url: str = Field("http://127.0.0.1:8000/v1", description="OpenAI-compatible API, up to and with /v1")
    api_key: SecretStr = Field(SecretStr(""), description="bearer token for the upstream")
    connect_timeout: Duration = Field(timedelta(seconds=5), description="how long a connection may take")


class WorkerSettings(Server):
    """Settings of a Worker."""

    id: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9._-]{0,62})?$")] = Field(
        "", description="name, unique in the fleet; empty: host name and port"
    )
    port: Port = Field(50061, description="gRPC port; 0 takes a free one")
    http_port: Port = Field(9093, description="HTTP port of /metrics; 0 takes a free one")
    advertise: str = Field(
        "", description="host (or host:port) by which routers reach it; empty: the host it listens on"
    )
    bus: Addresses = Field(("127.0.0.1:50052",), description="MetricsBus instances; the first that answers is used")
    report_interval: Duration = Field(timedelta(milliseconds=200), description="how often it reports, 50 ms to 200 ms")
    engine: Literal["llamacpp", "transformers", "openai", "vllm", "simulated"] = Field(
        "llamacpp", description="what runs the models"
    )
    models: tuple[ModelSettings, ...] = Field(
        (ModelSettings(name="smollm2-135m"),), description="models to load at the start"
    )
    model_root: Path = Field(Path("models"), description="directory that models may be loaded from")
    max_models: int = Field(4, gt=0, description="most models at once")
    slots: int = Field(4, gt=0, le=1024, description="requests that run at once")
    queue_limit: int = Field(64, ge=0, description="requests that may wait for a slot")
    threads: int = Field(1, gt=0, description="processor threads of the engine")
    context_tokens: int = Field(2048, gt=0, description="longest prompt and answer together, a request")
    device: str = Field("", description="where transformers runs: cpu, cuda, cuda:0; empty: cuda if there is one")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="number type of transformers")
    gpu_layers: int = Field(-1, ge=-1, description="layers that llama.cpp puts on a GPU; -1: all that fit")
    openai: OpenAISettings = OpenAISettings()
    simulated: SimulatedSettings = SimulatedSettings()


class TelemetrySettings(Section):
    """Logs and traces of every process."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["auto", "json", "text"] = Field("auto", description="auto: text on a terminal, else json")
    otlp_endpoint: str = Field("", description="OTLP/gRPC receiver, such as http://127.0.0.1:4317; empty: no traces")
    sample_ratio: float = Field(1.0, ge=0, le=1, description="share of traces kept, where the client did not decide")


class UpSettings(Section):
    """What `ladr up` starts."""

    workers: Annotated[int, Field(ge=1, le=64)] = Field(2, description="how many workers, where `fleet` is empty")
    fleet: tuple[dict[str, Any], ...] = Field(
        (), description="one entry a worker: the worker settings in which it differs"
    )


class Settings(Section):
    """All settings."""

    router: RouterSettings = RouterSettings()
    metrics: MetricsSettings = MetricsSettings()
    worker: WorkerSettings = WorkerSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    up: UpSettings = UpSettings()

    @model_validator(mode="after")
    def _fleet_entries_are_worker_settings(self) -> Settings:
        for position in range(len(self.up.fleet)):
            self.fleet_member(position)
        return self

    def fleet_member(self, position: int) -> WorkerSettings:
        """Settings of worker number `position`: `worker` with that entry of `up.fleet` laid over it."""
        base = self.worker.model_dump(exclude_unset=True)
        over = self.up.fleet[position] if self.up.fleet else {}
        return WorkerSettings.model_validate(_merge(base, over))


def load(file: Path | str | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings: `file` (else $LADR_CONFIG, else ./ladr.yaml if it is there), then the environment over it.

    Raises: ConfigError: with one line that says where and what.
    """
    environ = os.environ if environ is None else environ
    path = Path(file or environ.get("LADR_CONFIG") or DEFAULT_FILE)
    values: dict[str, Any] = {}
    lines: dict[tuple[str | int, ...], int] = {}
    if path.exists():
        values, lines = _read(path)
    elif file or environ.get("LADR_CONFIG"):
        raise ConfigError(f"{path}: no such file; give --config a file, or leave it out")
    from_env = _environment(environ)
    try:
        return Settings.model_validate(_merge(values, from_env))
    except ValidationError as error:
        raise ConfigError(_explain(error, path, lines, from_env)) from None


def defaults(section: str) -> type[Section]:
    """The class of a section, by its name in the file."""
    kind: type[Section] = type(getattr(Settings(), section))
    return kind


def env_name(*keys: str) -> str:
    """Name of the environment variable of a key: ("router", "port") → LADR_ROUTER__PORT."""
    return ENV_PREFIX + "__".join(key.upper() for key in keys)


def default_worker_id(host: str, port: int) -> str:
    """A worker's name where none is set: host name and port."""
    name = re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower()).strip("-.") or "worker"
    return f"{name[:50]}-{port}"


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[str | int, ...], int]]:
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: expected sections such as 'router:', found a {type(values).__name__}")
    lines: dict[tuple[str | int, ...], int] = {}
    _lines(node, (), lines)
    return values, lines


def _lines(node: yaml.Node | None, at: tuple[str | int, ...], into: dict[tuple[str | int, ...], int]) -> None:
    """The line of each key, by its path."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = (*at, str(key.value))
            into[path] = key.start_mark.line + 1
            _lines(value, path, into)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            into[(*at, index)] = value.start_mark.line + 1
            _lines(value, (*at, index), into)


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The keys that the environment sets. Only names with a double underscore are ours: LADR_SECTION__KEY."""
    values: dict[str, Any] = {}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or "__" not in name:
            continue
        *parents, last = name[len(ENV_PREFIX) :].lower().split("__")
        at = values
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = _parsed(environ[name])
    return values


def _parsed(text: str) -> Any:
    """JSON where it is a list or mapping, else the text (pydantic makes numbers of it)."""
    if text[:1] in "[{":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _explain(
    error: ValidationError, path: Path, lines: dict[tuple[str | int, ...], int], from_env: Mapping[str, Any]
) -> str:
    first = error.errors()[0]
    loc = tuple(part for part in first["loc"] if isinstance(part, str | int))
    if _holds(from_env, loc):
        where = env_name(*(str(part) for part in loc))
    else:
        line = next((lines[loc[:n]] for n in range(len(loc), 0, -1) if loc[:n] in lines), 0)
        where = f"{path}:{line}" if line else str(path)
    key = ".".join(str(part) for part in loc)
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(loc[-1]), _keys(loc[:-1]), n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else f"; known here: {', '.join(sorted(_keys(loc[:-1])))}"
        return f"{where}: unknown key '{key}'{hint}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {key}: {message}" if key else f"{where}: {message}"


def _holds(values: Any, loc: tuple[str | int, ...]) -> bool:
    for part in loc:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return bool(loc)


def _keys(loc: tuple[str | int, ...]) -> list[str]:
    """Known keys of the section at `loc`."""
    kind: type[BaseModel] = Settings
    for part in loc:
        if isinstance(part, int):
            continue
        annotation = kind.model_fields[part].annotation if part in kind.model_fields else None
        inner = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not inner:
            return []
        kind = inner[0]
    return list(kind.model_fields)
