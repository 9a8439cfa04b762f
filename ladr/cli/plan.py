"""What `ladr up` starts: the bus, the router and the workers, each with its ports and its environment. Nothing runs yet."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladr import config
from ladr.cli.misuse import Misuse
from ladr.cli.neighbours import who_answers, who_has_metrics
from ladr.cli.ports import FreePorts, is_free, reachable
from ladr.config import Section, Settings, WorkerSettings, env_name, worker_name

_NESTED = frozenset(
    name
    for name, field in WorkerSettings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
)


@dataclass(frozen=True)
class Child:
    """One process: `python -m services.SERVICE`.

    Attributes:
        name: "router", "metrics", or the worker's id.
        address: host:port by which this machine reaches its gRPC server.
        http_address: the same for /metrics.
        host: the address that it listens on.
        ports: the setting that moves it ("router.port") and the number, of each port that it listens on.
        grace_s: how long it may take to end after SIGTERM.
        environ: what its environment has beyond ours.
    """

    name: str
    service: str
    address: str
    http_address: str
    host: str
    ports: tuple[tuple[str, int], ...]
    grace_s: float
    environ: dict[str, str]


def plan(settings: Settings, count: int | None = None) -> list[Child]:
    """The processes, in the order in which they start. `count`: workers; else up.fleet or up.workers says.

    Raises: Misuse: a port is in use, or is given twice.
    """
    if count is not None and settings.up.fleet:
        raise Misuse("--workers does not go with up.fleet, which has one entry a worker; take one away")
    with FreePorts() as free:
        metrics = _child("metrics", "metrics", settings.metrics, free)
        bus = {env_name("router", "bus"): metrics.address, env_name("worker", "bus"): metrics.address}
        children = [metrics, _child("router", "router", settings.router, free, {**bus, **_jobs(settings)})]
        for position in range(len(settings.up.fleet) or count or settings.up.workers):
            children.append(_worker(settings, position, free, bus))
    _check(children)
    return children


def jobs_file(settings: Settings) -> Path | None:
    """Where `ladr up` keeps jobs by itself: a file for each router port. None: settings say where, or the port is a new one."""
    if "store" in settings.router.jobs.model_fields_set or not settings.router.port:
        return None
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return state / "ladr" / str(settings.router.port) / "jobs.db"


def _jobs(settings: Settings) -> dict[str, str]:
    path = jobs_file(settings)
    if path is None:
        return {}
    return {env_name("router", "jobs", "store"): "sqlite", env_name("router", "jobs", "path"): str(path)}


def another_worker(settings: Settings, metrics: Child, position: int) -> Child:
    """One more worker like the others, on ports that are free now."""
    bus = {env_name("worker", "bus"): metrics.address}
    worker = settings.worker.model_copy(update={"port": 0, "http_port": 0})
    with FreePorts() as free:
        return _worker(settings.model_copy(update={"worker": worker}), position, free, bus)


def _worker(settings: Settings, position: int, free: FreePorts, bus: Mapping[str, str]) -> Child:
    entry = settings.up.fleet[position] if settings.up.fleet else {}
    own = settings.fleet_member(position)
    ports = {
        key: getattr(own, key) if key in entry or not getattr(own, key) else getattr(own, key) + position
        for key in ("port", "http_port")
    }
    name = worker_name(position, entry)
    environ = {env_name("worker", *keys): _text(value) for keys, value in _leaves(entry)}
    environ |= {**bus, env_name("worker", "id"): name}
    return _child(name, "worker", own.model_copy(update=ports), free, environ)


def _child(
    name: str, service: str, server: config.Server, free: FreePorts, environ: Mapping[str, str] | None = None
) -> Child:
    try:
        port = server.port or free.take(server.host)
        http_port = server.http_port or free.take(server.host)
    except OSError as error:
        raise Misuse(f"{server.host} cannot be listened on ({error.strerror}): set {service}.host") from None
    own = {env_name(service, "port"): str(port), env_name(service, "http_port"): str(http_port)}
    return Child(
        name=name,
        service=service,
        address=f"{reachable(server.host)}:{port}",
        http_address=f"{reachable(server.host)}:{http_port}",
        host=server.host,
        ports=((f"{service}.port", port), (f"{service}.http_port", http_port)),
        grace_s=server.drain_grace.total_seconds(),
        environ={**(environ or {}), **own},
    )


def _check(children: list[Child]) -> None:
    owners: dict[int, str] = {}
    for child in children:
        for key, port in child.ports:
            if port in owners:
                raise Misuse(f"port {port} is given to {owners[port]} and to {child.name}; set another {key}")
            owners[port] = child.name
            try:
                free = is_free(child.host, port)
            except OSError as error:
                where = f"{child.host}:{port}"
                raise Misuse(f"{where} cannot be listened on ({error.strerror}): set {key} or its host") from None
            if not free:
                address = f"{reachable(child.host)}:{port}"
                who = who_has_metrics(address) if key.endswith("http_port") else who_answers(address)
                raise Misuse(f"port {port} is in use{f' ({who})' if who else ''}: set {key} or stop what uses it")


def _leaves(entry: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each setting of a fleet entry by its keys, nested ones too: each must win over the variable of just that name."""
    for key, value in entry.items():
        if key in _NESTED and isinstance(value, Mapping):
            yield from (((key, *inner), leaf) for inner, leaf in _leaves(value))
        else:
            yield (key,), value


def _text(value: Any) -> str:
    """A fleet entry's value as the environment gives it."""
    return value if isinstance(value, str) else json.dumps(value)
