"""A mesh of its own for a run: bus, router and simulated workers as real processes on free ports, gone at the end."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from ladr.cli.keeper import Keeper
from ladr.cli.output import line
from ladr.cli.plan import Child, plan
from ladr.cli.readiness import mesh_ready
from ladr.cli.service import SERVICES, service_argv
from ladr.cli.supervisor import Supervisor
from ladr.config import Settings, UpSettings, env_name

T = TypeVar("T")


@dataclass
class Mesh:
    """What is running. `crashes`: lines about processes that had to be started again."""

    address: str
    router_pid: int
    crashes: list[str] = field(default_factory=list)


class _Silent:
    """A Voice that keeps the notes and says nothing."""

    streams = False

    def __init__(self) -> None:
        self.notes: list[str] = []

    def state(self, name: str, state: str, share: float | None = None) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def event(self, kind: str, text: str, **facts: Any) -> None: ...

    def close(self) -> None: ...


def mesh_of(settings: Settings, fleet: Sequence[dict[str, Any]], policy: str) -> list[Child]:
    """The processes of a mesh with that fleet (entries of `up.fleet`) and that policy; in all else as `settings` say."""
    router = settings.router.model_copy(update={"port": 0, "http_port": 0})
    metrics = settings.metrics.model_copy(update={"port": 0, "http_port": 0})
    own = {env_name("router", "policy"): policy, env_name("metrics", "backend"): "memory"}
    all_of_it = settings.model_copy(
        update={"router": router, "metrics": metrics, "up": UpSettings(fleet=tuple(fleet))},
    )
    return [replace(child, environ={**child.environ, **own}) for child in plan(all_of_it)]


async def with_mesh(children: Sequence[Child], config_file: Path | None, work: Callable[[Mesh], Awaitable[T]]) -> T:
    """Start the mesh, do the work once all of it takes requests, and stop it whatever happened; gives what `work` gave.

    Raises: click.Abort: a signal came. ChildFailed: a process cannot run. Misuse: there are no services here.
    """
    argv = {service: service_argv(service, config_file) for service in SERVICES}
    logs = Path(tempfile.mkdtemp(prefix="ladr-bench-"))
    voice = _Silent()
    keepers = [Keeper(child, argv[child.service], logs / f"{child.name}.log", voice.note) for child in children]
    router = next(keeper for keeper in keepers if keeper.child.service == "router")
    results: list[T] = []

    async def run() -> int:
        await mesh_ready(keepers, voice)
        results.append(await work(Mesh(router.child.address, router.pid, voice.notes)))
        return 0

    try:
        await Supervisor(keepers).run(run, lambda: None)
    except BaseException as error:
        if not isinstance(error, asyncio.CancelledError):
            line(f"logs: {logs}", err=True)
        raise
    if not voice.notes:  # else they name the logs
        shutil.rmtree(logs, ignore_errors=True)
    if not results:
        raise click.Abort
    return results[0]
