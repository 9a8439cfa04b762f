"""The settings of every part of LADR: one `ladr.yaml`, every key also an environment variable.

`router.port` in the file is `LADR_ROUTER__PORT` in the environment; the environment wins. Values are frozen, in real units,
and read once, by each process's `__main__`. A mistake is a `ConfigError`: one line that names the place and the remedy.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, Field, SecretStr, ValidationError

from ladr.channel import BUS_MESSAGE_BYTES
from ladr.config_base import Section, Server
from ladr.config_distiller import DistillerSettings
from ladr.config_sources import (
    ConfigError,
    Loc,
    env_name,
    laid_over,
    merge,
    place_of,
    read_environment,
    read_file,
)
from ladr.config_sources import Source as _Source
from ladr.config_types import (
    Addresses,
    Aliases,
    AnyDuration,
    AsModels,
    AsNames,
    Bytes,
    Duration,
    Port,
    RedisUrl,
    between,
    distinct,
    duration_text,
)

__all__ = [
    "ConfigError",
    "DistillerSettings",
    "Section",
    "Server",
    "Settings",
    "default_worker_id",
    "env_name",
    "load",
    "plain",
]

DimensionName = Annotated[str, Field(pattern=r"^(kv|stages|edge|draft|prefix|session|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")]

DEFAULT_FILE = "ladr.yaml"


class ScaleSettings(Section):
    """When the load asks for more workers of a model, or for fewer."""

    min_workers: int = Field(1, ge=0, le=4096, description="never fewer than these")
    max_workers: int = Field(64, ge=1, le=4096, description="never more than these")
    waiting: Duration = Field(timedelta(seconds=1), description="grow when so much work waits, in seconds of the fleet")
    slo_misses: float = Field(
        0.05, gt=0, le=1, description="grow when more first tokens than this share miss the SLO on a busy fleet"
    )
    variation: float = Field(
        1.0, gt=0, description="spread of the workers' costs (deviation ÷ mean) over which the load is called uneven"
    )
    utilization: float = Field(0.7, gt=0, le=1, description="share of the slots that a fleet of the right size uses")
    cooldown: Duration = Field(timedelta(seconds=15), description="least time between two changes")
    down_after: Duration = Field(timedelta(minutes=5), description="how long fewer must do before there are fewer")


class TunerSettings(Section):
    """Whether the policy's parameters are tuned while it works."""

    mode: Literal["off", "shadow", "on"] = Field("off", description="shadow: decide and write down, but change nothing")
    window: Duration = Field(timedelta(seconds=10), description="how long parameters are tried before they are judged")
    objective: Literal["ttft_p99", "slo_misses"] = Field("ttft_p99", description="what shall be less")
    state: Path = Field(
        Path(),
        description="file that keeps what was learnt; empty: ladr/tuner-POLICY.json in the user's state directory",
    )


class CascadeSettings(Section):
    """A student answers first, and its teacher where the student is not confident."""

    student: str = Field(min_length=1, max_length=128, description="served name of the model that is asked first")
    teacher: str = Field(min_length=1, max_length=128, description="served name of the model that has the last word")
    threshold: float = Field(
        -1.0, le=0, description="mean log-probability a token, in nats, below which the teacher is asked"
    )
    share: float | None = Field(
        None, ge=0, le=1, description="share of requests for the teacher: the threshold follows it, once 32 are judged"
    )
    tokens: int = Field(16, ge=1, le=512, description="first tokens of the student's answer that are judged")


class JobsSettings(Section):
    """Durable jobs: requests that are kept until they are answered."""

    store: Literal["off", "sqlite", "redis"] = Field(
        "off", description="where jobs are kept; sqlite: a file, for routers on one machine"
    )
    path: Path = Field(Path("jobs.db"), description="the file of the sqlite store")
    redis_url: RedisUrl = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        validate_default=True,
        description="Redis of the redis store, with its password: redis://:secret@host:6379/0",
    )
    redis_prefix: str = Field("ladr", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="first part of each Redis key")
    lease: Annotated[Duration, between(timedelta(milliseconds=500), timedelta(hours=1))] = Field(
        timedelta(seconds=15), description="an attempt not heard of for so long is made again; renewed at a third of it"
    )
    attempts: int = Field(5, ge=1, le=100, description="attempts at a job before it is a dead letter")
    attempt_timeout: Duration = Field(timedelta(hours=1), description="how long one attempt may take")
    retention: Duration = Field(timedelta(hours=24), description="how long a job that has ended is kept")
    max_live: int = Field(1_000_000, gt=0, description="most jobs that have not ended, about")
    max_running: int = Field(64, gt=0, le=4096, description="most jobs that one router runs at once")
    headroom: float = Field(0.5, ge=0, lt=1, description="share of the fleet's slots that jobs leave free")


def _shares(value: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    for alias, shares in value.items():
        if not shares or any(share < 0 for share in shares.values()) or not any(shares.values()):
            raise ValueError(f"give {alias!r} models with shares from 0, at least one of them over 0")
    return value


class RouterSettings(Server):
    """Settings of the Router."""

    port: Port = Field(50051, description="gRPC port; 0 takes a free one")
    http_port: Port = Field(9090, description="HTTP port of /metrics; 0 takes a free one")
    processes: int = Field(
        1, ge=1, le=64, description="router processes on the port; a client connection has one of them"
    )
    share_port: bool = Field(False, description="let other processes listen on the port as well")
    event_engine: Literal["on", "off"] = Field(
        "on", description="off: gRPC's older poller, which takes less processor time for paced streams (experimental)"
    )
    bus: Addresses = Field(("127.0.0.1:50052",), description="MetricsBus instances; the first that answers is used")
    policy: Literal[
        "ladr",
        "ladr-weighted",
        "round-robin",
        "random",
        "least-request",
        "power-of-two",
        "peak-ewma",
        "prequal",
        "grpc-wrr",
        "sed",
        "lmetric",
        "smg",
    ] = Field("ladr", description="how a worker is picked")
    growth: float = Field(
        1.0, ge=0, le=10, description="ladr: how much longer a step is taken to be with all slots busy"
    )
    hold: int = Field(
        0, ge=0, le=64, description="ladr: requests sent to a worker beyond its slots; the others wait in the router"
    )
    noise: float = Field(0.2, ge=0, lt=1, description="ladr: spread of the costs, so that several routers do not herd")
    dimensions: Annotated[tuple[DimensionName, ...], AsNames] = Field(
        ("kv", "stages", "edge", "prefix", "session"),
        description="ladr: what else costs: kv, stages, edge, draft, prefix, session, or package.module:Class",
    )
    alpha: float = Field(0.5, gt=0, description="weight of latency in the score")
    beta: float = Field(0.5, gt=0, description="weight of the queue in the score")
    theta: float = Field(0.7, ge=0, lt=1, description="share of the old value in each smoothing step")
    tick: Duration = Field(timedelta(milliseconds=200), description="how often scores are computed and published")
    ttl: Duration = Field(timedelta(seconds=1), description="a worker silent for so long gets nothing")
    default_model: str = Field("", description="model of requests that name none; empty: the only one served")
    aliases: Aliases = Field({}, description="further names of models: alias → served name")
    canaries: Annotated[dict[str, dict[str, float]], AfterValidator(_shares)] = Field(
        {}, description="alias → models that share its requests, with their shares: {chat: {old: 95, new: 5}}"
    )
    fallbacks: dict[str, tuple[str, ...]] = Field(
        {}, description="model → models that answer while nobody can take a request for it, in order"
    )
    cascades: dict[str, CascadeSettings] = Field({}, description="alias → a student that is asked before its teacher")
    max_streams: int = Field(4096, gt=0, description="most Generate streams at once")
    queue_limit: int = Field(1024, ge=0, description="requests that may wait here for a free worker")
    queue_timeout: Duration = Field(timedelta(seconds=30), description="how long one may wait")
    order: Literal["fifo", "feasible", "shortest", "feasible-shortest", "fair", "feasible-fair"] = Field(
        "fifo", description="who of those that wait is next, within a class of priority"
    )
    first_token_slo: Duration = Field(
        timedelta(seconds=2), description="a first token later than this is a miss, for the order and for scaling"
    )
    max_attempts: int = Field(
        4, gt=0, le=16, description="most workers tried for one request before its first token, or between two tokens"
    )
    retry_budget: float = Field(0.2, ge=0, le=1, description="retries allowed, as a share of requests")
    hedge_after: AnyDuration = Field(
        timedelta(0), description="ask a second worker too after so long without a first token; 0s: never"
    )
    hedge_budget: float = Field(0.05, ge=0, le=1, description="second workers asked so, as a share of requests")
    scale: ScaleSettings = ScaleSettings()
    jobs: JobsSettings = JobsSettings()
    tuner: TunerSettings = TunerSettings()
    slow_start: AnyDuration = Field(
        timedelta(seconds=2), description="how long a new or healed worker takes to get its full share"
    )


class MetricsSettings(Server):
    """Settings of the MetricsBus."""

    port: Port = Field(50052, description="gRPC port; 0 takes a free one")
    http_port: Port = Field(9091, description="HTTP port of /metrics; 0 takes a free one")
    max_message_bytes: Bytes = Field(BUS_MESSAGE_BYTES, description="largest gRPC message, each way")
    backend: Literal["memory", "redis"] = Field("memory", description="where reports are kept")
    redis_url: RedisUrl = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        validate_default=True,
        description="Redis, with its password: redis://:secret@host:6379/0",
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
    draft: str = Field("", description="draft model for speculative decoding, as source; transformers only")
    draft_tokens: int = Field(3, ge=1, le=16, description="tokens that the draft proposes in a round")


def _distinct_models(models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
    distinct((model.name for model in models), "models")
    return models


class SimulatedSettings(Section):
    """The latency model of the `simulated` engine: step(b) = step · (1 + growth · (b − 1) / (slots − 1))."""

    step: Duration = Field(timedelta(milliseconds=10), description="decode step with one request")
    growth: float = Field(1.0, ge=0, description="how much longer a step is with all slots busy")
    prefill_tokens_per_s: float = Field(10_000.0, gt=0, description="prompt tokens read a second")
    answer_tokens: int = Field(64, gt=0, description="median length of an answer that no limit cuts")
    answer_sigma: float = Field(0.0, ge=0, description="log-normal spread of that length")
    load: AnyDuration = Field(timedelta(0), description="how long a model takes to load")
    fail_ratio: float = Field(0.0, ge=0, le=1, description="share of requests that fail at once")
    prefix_cache_tokens: int = Field(0, ge=0, description="prompt tokens that are kept and not read again; 0: none")
    kv_tokens: int = Field(0, ge=0, description="tokens of all running requests together, at most; 0: any number")
    slow_after: AnyDuration = Field(timedelta(0), description="when after its start the engine slows down")
    slow_factor: float = Field(1.0, gt=0, description="how much longer a step is from then on; 1: it does not")
    seed: int = Field(0, ge=0, description="seed of lengths and failures")


class OpenAISettings(Section):
    """The upstream of the `openai` engine."""

    base_url: str = Field("http://127.0.0.1:8000/v1", description="OpenAI-compatible API, up to and with /v1")
    api_key: SecretStr = Field(SecretStr(""), description="bearer token for the upstream")
    connect_timeout: Duration = Field(timedelta(seconds=5), description="how long a connection may take")
    read_timeout: Duration = Field(timedelta(minutes=5), description="longest silence of the upstream within an answer")


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
    report_interval: Annotated[Duration, between(timedelta(milliseconds=50), timedelta(milliseconds=200))] = Field(
        timedelta(milliseconds=200), description="how often it reports, 50 ms to 200 ms"
    )
    engine: Literal["llamacpp", "transformers", "openai", "vllm", "simulated"] = Field(
        "llamacpp", description="what runs the models"
    )
    models: Annotated[tuple[ModelSettings, ...], AsModels, AfterValidator(_distinct_models)] = Field(
        (ModelSettings(name="smollm2-135m"),), description="models to load at the start; short: name=source,name=source"
    )
    model_root: Path = Field(Path("models"), description="directory that models may be loaded from")
    allow_hub: bool = Field(False, description="let a model's source be a hub name, which is downloaded")
    max_models: int = Field(4, gt=0, le=64, description="most models at once")
    slots: int = Field(4, gt=0, le=1024, description="requests that run at once")
    queue_limit: int = Field(64, ge=0, description="requests that may wait for a slot")
    batch_tokens: int = Field(
        1, gt=0, le=64, description="tokens sent together after an answer's first; 1: each at once"
    )
    batch_delay: Duration = Field(timedelta(milliseconds=20), description="longest that a token waits for such company")
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


def worker_name(position: int, entry: Mapping[str, Any]) -> str:
    """Name of the worker that `ladr up` starts from a fleet entry: its id, else by its place."""
    return str(entry.get("id") or f"worker-{position + 1}")


def _distinct_workers(fleet: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    distinct((worker_name(position, entry) for position, entry in enumerate(fleet)), "workers")
    return fleet


class UpSettings(Section):
    """What `ladr up` starts."""

    workers: Annotated[int, Field(ge=1, le=64)] = Field(2, description="how many workers, where `fleet` is empty")
    fleet: Annotated[tuple[dict[str, Any], ...], AfterValidator(_distinct_workers)] = Field(
        (), description="one entry a worker: the worker settings in which it differs"
    )


class Settings(Section):
    """All settings."""

    router: RouterSettings = RouterSettings()
    metrics: MetricsSettings = MetricsSettings()
    worker: WorkerSettings = WorkerSettings()
    distiller: DistillerSettings = DistillerSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    up: UpSettings = UpSettings()

    def fleet_member(self, position: int) -> WorkerSettings:
        """Settings of worker number `position`: `worker` with that entry of `up.fleet` laid over it."""
        base = self.worker.model_dump(exclude_unset=True)
        over = self.up.fleet[position] if self.up.fleet else {}
        return WorkerSettings.model_validate(merge(base, over))


def load(file: Path | str | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings: `file` (else $LADR_CONFIG, else ./ladr.yaml if it is there), then the environment over it.

    Raises: ConfigError: with one line that says where and what.
    """
    environ = os.environ if environ is None else environ
    named = file or environ.get("LADR_CONFIG")
    path = Path(named or DEFAULT_FILE)
    if named and not path.exists():
        where, mend = (
            ("", "give --config a file, or leave it out") if file else ("LADR_CONFIG: ", "name a file, or unset it")
        )
        raise ConfigError(f"{where}{path}: no such file; {mend}")
    source = laid_over(read_file(path) if path.exists() else _Source(), read_environment(environ))
    try:
        settings = Settings.model_validate(source.values)
    except ValidationError as error:
        raise ConfigError(_explain(error, source)) from None
    for position in range(len(settings.up.fleet)):
        try:
            settings.fleet_member(position)
        except ValidationError as error:
            raise ConfigError(_explain(error, source, ("up", "fleet", position), WorkerSettings)) from None
    return settings


def plain(value: Any) -> Any:
    """A value as it is written in a file: durations as "200ms", secrets as stars, sections as mappings."""
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, timedelta):
        return duration_text(value)
    return str(value) if isinstance(value, SecretStr | Path) else value


def default_worker_id(host: str, port: int) -> str:
    """A worker's name where none is set: host name and port."""
    name = re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower()).strip("-.") or "worker"
    return f"{name[:50]}-{port}"


def _explain(error: ValidationError, source: _Source, under: Loc = (), root: type[BaseModel] | None = None) -> str:
    """One line for the first thing that is wrong with what is `under` that key, which holds a `root`."""
    first = error.errors()[0]
    inner = tuple(part for part in first["loc"] if isinstance(part, str | int))
    loc = (*under, *inner)
    place, key = place_of(loc, source.places), ".".join(str(part) for part in loc)
    where = f"{place}: " if place else ""
    if first["type"] == "extra_forbidden":
        known = _keys(inner[:-1], root or Settings)
        near = difflib.get_close_matches(str(inner[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(sorted(known))}"
        return f"{where}unknown key '{key}'; {hint}"
    message = first["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]
    return f"{where}{key}: {message.replace('valid tuple', 'list')}"


def _keys(loc: Loc, root: type[BaseModel]) -> list[str]:
    """Known keys of the section at `loc`."""
    kind = root
    for part in loc:
        if isinstance(part, int):
            continue
        annotation = kind.model_fields[part].annotation if part in kind.model_fields else None
        inner = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not inner:
            return []
        kind = inner[0]
    return list(kind.model_fields)
