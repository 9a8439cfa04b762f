"""`ladr up`: a whole mesh on this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from ladr.channel import DEFAULT_ADDRESS
from ladr.cli.asking import summary
from ladr.cli.autoscale import Autoscale
from ladr.cli.flags import config_option, load, setting_flags, taken
from ladr.cli.keeper import ChildFailed, Keeper
from ladr.cli.misuse import Misuse
from ladr.cli.output import as_dict, line, output_option, write
from ladr.cli.plan import Child, another_worker, jobs_file, plan
from ladr.cli.readiness import mesh_ready
from ladr.cli.service import MESH, service_argv
from ladr.cli.supervisor import Supervisor
from ladr.cli.voice import Voice, voice_for
from ladr.client import Client
from ladr.config import Settings, WorkerSettings, env_name
from ladr.errors import LadrError
from ladr.v1.generation_pb2 import Delta, Finished

_ENGINES = get_args(WorkerSettings.model_fields["engine"].annotation)


@click.command(
    epilog="Every setting is a flag too: --router-port, --worker-slots, --metrics-backend… (`ladr config show` lists them)."
)
@click.option("--workers", type=click.IntRange(1, 64), help="How many workers; else up.fleet or up.workers says.")
@click.option("--min-workers", type=click.IntRange(1, 64), help="Never fewer workers than these; more with the load.")
@click.option("--max-workers", type=click.IntRange(1, 64), help="Let workers come and go with the load, up to so many.")
@click.option(
    "--engine", type=click.Choice(_ENGINES), metavar="ENGINE", help=f"What runs the models: {', '.join(_ENGINES)}."
)
@click.option("--ask", metavar="QUESTION", help="Ask it when all is ready (greedily), and show the answer.")
@click.option("--once", is_flag=True, help="Stop when all is ready and the question is answered.")
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the logs go; else a new one in /tmp, which a good end takes away.",
)
@config_option
@output_option
@setting_flags("router", prefix="router-", hidden=True)
@setting_flags("worker", prefix="worker-", hidden=True)
@setting_flags("metrics", prefix="metrics-", hidden=True)
@setting_flags("telemetry", prefix="telemetry-", hidden=True)
def up(
    workers: int | None,
    min_workers: int | None,
    max_workers: int | None,
    engine: str | None,
    ask: str | None,
    once: bool,
    log_dir: Path | None,
    config_file: Path | None,
    output: str,
    **given: Any,
) -> int:
    """Start a whole mesh on this machine.

    A bus, a router and workers; they are kept alive, and stopped at Ctrl-C (twice: at once).
    """
    if engine:
        given["set_worker__engine"] = engine
    flags = taken(given)
    if min_workers or max_workers:
        least, most = _scale(workers, min_workers, max_workers)
        workers = least
        flags[env_name("router", "scale", "min_workers")] = str(least)
        flags[env_name("router", "scale", "max_workers")] = str(most)
    prefixes = {section: f"{section}-" for section in (*MESH, "telemetry")}
    settings = load(config_file, os.environ, flags, **prefixes)
    argv = {service: service_argv(service, config_file) for service in MESH}
    children = plan(settings, workers)
    logs = log_dir or Path(tempfile.mkdtemp(prefix="ladr-"))
    logs.mkdir(parents=True, exist_ok=True)
    os.environ.update(flags)
    voice = voice_for(output)
    code = 1
    try:
        mesh = _Mesh(settings, children, argv, logs, voice)
        code = asyncio.run(mesh.run(ask, once, scales=bool(max_workers)))
    except ChildFailed as failed:
        voice.close()
        for each in failed.tail:
            line(f"  {each}", err=True)
        line(f"ladr: {failed}", err=True)
        code = failed.code
    finally:
        voice.close()
        if not log_dir:
            _leave(logs, code)
    return code


def _leave(logs: Path, code: int) -> None:
    """Take our own log directory away, unless somebody has to look into it."""
    if code:
        line(f"logs: {logs}", err=True)
    else:
        shutil.rmtree(logs, ignore_errors=True)


def _scale(workers: int | None, least: int | None, most: int | None) -> tuple[int, int]:
    """Fewest and most workers. Raises: Misuse: they do not go together."""
    if workers:
        raise Misuse("--workers does not go with --min-workers and --max-workers; take one away")
    least = least or 1
    if most is None:
        raise Misuse("--min-workers needs --max-workers")
    if most < least:
        raise Misuse(f"--max-workers {most} is less than --min-workers {least}")
    return least, most


class _Mesh:
    """The processes of one `ladr up`."""

    def __init__(
        self, settings: Settings, children: Sequence[Child], argv: dict[str, list[str]], logs: Path, voice: Voice
    ) -> None:
        self._settings = settings
        self._children = children
        self._argv = argv
        self._logs = logs
        self._voice = voice
        self._metrics = next(child for child in children if child.service == "metrics")
        self._router = next(child for child in children if child.service == "router")

    async def run(self, ask: str | None, once: bool, scales: bool) -> int:
        """Run it until told to stop; gives the exit code."""
        voice = self._voice
        keepers = [self._keeper(child) for child in self._children]
        supervisor = Supervisor(keepers)

        async def work() -> int:
            await mesh_ready(keepers, voice)
            voice.close()
            _announce(self._children, self._router, self._logs, jobs_file(self._settings), voice, once)
            code = 0
            if ask:
                code = await _ask(self._router.address, ask, voice)
            if not once:
                voice.event("running", "Ctrl-C stops it all.")
                if scales:
                    await Autoscale(
                        self._router.address, _workers(keepers), supervisor, self._another, voice.note
                    ).run()
                await asyncio.Event().wait()
            return code

        return await supervisor.run(work, lambda: voice.note("stopping (Ctrl-C again stops at once)"))

    def _keeper(self, child: Child) -> Keeper:
        return Keeper(child, self._argv[child.service], self._logs / f"{child.name}.log", self._voice.note)

    def _another(self, position: int) -> Keeper:
        return self._keeper(another_worker(self._settings, self._metrics, position))


def _workers(keepers: Sequence[Keeper]) -> int:
    return sum(keeper.child.service == "worker" for keeper in keepers)


def _announce(
    children: Sequence[Child], router: Child, logs: Path, jobs: Path | None, voice: Voice, once: bool
) -> None:
    rows = [f"  {child.name:<12} {child.address:<22} http://{child.http_address}/metrics" for child in children]
    more = [
        f"  logs         {logs}",
        *([f"  jobs         {jobs}"] if jobs else []),
        "try:",
        "  ladr chat" + ("" if router.address == DEFAULT_ADDRESS else f" --address {router.address}"),
        f'  grpcurl -plaintext -d \'{{"prompt":"Name three rivers."}}\' {router.address} ladr.v1.Router/Generate',
    ]
    text = "\n".join(["ready:", *rows, *([] if once else more)])
    facts = {child.name: {"address": child.address, "http": child.http_address} for child in children}
    voice.event("ready", text, services=facts, logs=str(logs))


async def _ask(address: str, question: str, voice: Voice) -> int:
    """Ask without chance, show the answer while it comes, and say who gave it; gives the exit code."""
    plain = voice.streams
    pieces: list[str] = []
    voice.event("question", f"\n› {question}", question=question)
    try:
        async with Client(address) as client, client.generate(question, temperature=0, max_tokens=128) as answer:
            async for event in answer:
                if isinstance(event, Delta):
                    pieces.append(event.text)
                    if plain:
                        write(event.text)
        if plain:
            write("\n")
        finished = answer.finished or Finished()
        facts = {"worker_id": answer.started.worker_id if answer.started else "", "usage": as_dict(finished.usage)}
        voice.event("answer", summary(answer.started, finished), answer="".join(pieces), **facts)
    except LadrError as error:
        if plain and any(pieces):
            write("\n")
        voice.note(f"ladr: {error}")
        return 1
    return 0
