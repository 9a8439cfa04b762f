"""`ladr distill`: smaller students of a teacher."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
import yaml
from rich.console import Console

from ladr.channel import DISTILLER_ADDRESS
from ladr.cli.asking import target
from ladr.cli.distill_spec import read_spec
from ladr.cli.distill_view import View, phase_name, view_for
from ladr.cli.output import as_dict, emit, line, lines, output_option, table, write
from ladr.distill_calls import DistillState, distill_state
from ladr.errors import Draining, LadrError, Unreachable
from ladr.sync_client import SyncClient
from ladr.v1 import distiller_pb2 as pb

F = TypeVar("F", bound=Callable[..., Any])
_PATIENCE_S = 600.0  # how long a watch waits for a service that went away
_AGAIN_S = 1.0

address_option = click.option(
    "--distiller",
    "address",
    metavar="HOST:PORT",
    callback=target,
    envvar="LADR_DISTILLER_ADDRESS",
    default=DISTILLER_ADDRESS,
    show_default=True,
    help="Distiller; or $LADR_DISTILLER_ADDRESS.",
)
_STDOUT = Path("-")


def _page(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and not value.parent.is_dir():
        raise click.BadParameter(f"there is no directory {value.parent}: make it first")
    return value


_ids = click.argument("ids", nargs=-1, required=True, metavar="ID…")


@click.group()
def distill() -> None:
    """Make a smaller student of a teacher, and see how good it is.

    A job goes on when this command ends. The service is `ladr distiller`.
    """


@distill.command()
@click.argument("file", required=False, type=click.File("r", encoding="utf-8"))
@click.option("--teacher", help="Path under the service's model root, or a hub name. Default: the 135M chat model.")
@click.option("--layers", type=click.IntRange(min=1), help="Layers of the teacher that the student keeps.")
@click.option("--data", help="JSON Lines under the service's data root. Default: a small set that comes with it.")
@click.option("--steps", type=click.IntRange(min=0), help="Optimiser steps; 0: only measure, and quantise.")
@click.option("--seed", type=click.IntRange(min=0), help="Of data order, sampling and new weights.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any other value: training.learning_rate=1e-4.")
@click.option("--request-id", default="", help="The same name with the same spec is the same job.")
@click.option("--watch", "watches", is_flag=True, help="Watch it to its end; else its id is printed.")
@address_option
@output_option
def start(
    file: Any,
    teacher: str | None,
    layers: int | None,
    data: str | None,
    steps: int | None,
    seed: int | None,
    sets: tuple[str, ...],
    request_id: str,
    watches: bool,
    address: str,
    output: str,
) -> int:
    """Start a job of the spec in FILE (YAML or JSON; - reads stdin), of flags, or of both; a flag wins."""
    flags = {
        "teacher": teacher,
        "student.layers": layers,
        "data.path": data,
        "training.steps": steps,
        "training.seed": seed,
    }
    text = file.read() if file else ""
    spec = read_spec(text, flags, sets)
    with SyncClient(address) as client:
        job = client.create_distill_job(spec, request_id=request_id)
        if watches:
            return _watch(client, job.id, output, from_start=True)
    if output == "json":
        emit(as_dict(job))
    else:
        line(job.id)
    return 0


@distill.command("list")
@click.option("--state", type=click.Choice(get_args(DistillState)), help="Only jobs in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most jobs to show.")
@address_option
@output_option
def list_jobs(state: DistillState | None, limit: int, address: str, output: str) -> None:
    """List jobs in the order in which they were made."""
    with SyncClient(address) as client:
        _show(itertools.islice(client.distill_jobs(state), limit), output)


@distill.command()
@click.argument("id")
@address_option
@output_option
def get(id: str, address: str, output: str) -> None:
    """Show all of the job ID: spec, progress, figures, or why it failed."""
    with SyncClient(address) as client:
        job = client.get_distill_job(id)
    if output == "json":
        emit(as_dict(job))
    else:
        write(yaml.safe_dump(as_dict(job), sort_keys=False, allow_unicode=False))


@distill.command()
@click.argument("id")
@click.option("--from-start", is_flag=True, help="In a pipe, too: the progress that was made before.")
@address_option
@output_option
def watch(id: str, from_start: bool, address: str, output: str) -> int:
    """Watch the job ID to its end, over restarts of the service. Exit code 1: it did not succeed."""
    with SyncClient(address) as client:
        return _watch(client, id, output, from_start)


@distill.command()
@_ids
@address_option
@output_option
def cancel(ids: tuple[str, ...], address: str, output: str) -> None:
    """Stop jobs; their last checkpoints stay."""
    with SyncClient(address) as client:
        _show((client.cancel_distill_job(each) for each in ids), output)


@distill.command()
@_ids
@address_option
@output_option
def resume(ids: tuple[str, ...], address: str, output: str) -> None:
    """Go on with jobs that failed or were cancelled, from their last checkpoints."""
    with SyncClient(address) as client:
        _show((client.resume_distill_job(each) for each in ids), output)


@distill.command()
@_ids
@address_option
def delete(ids: tuple[str, ...], address: str) -> None:
    """Forget jobs that have ended, with their checkpoints, students and reports."""
    with SyncClient(address) as client:
        for each in ids:
            client.delete_distill_job(each)


@distill.command()
@click.argument("id")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True, path_type=Path),
    callback=_page,
    metavar="FILE",
    help="Write the whole report there: one page with its pictures in it. -: to stdout, and nothing else.",
)
@address_option
@output_option
def report(id: str, html: Path | None, address: str, output: str) -> None:
    """Show the main figures of the job ID; -o json shows all that was measured."""
    with SyncClient(address) as client:
        found = client.get_distill_report(id, html=html is not None)
    if html is not None:
        if not found.html:
            raise click.ClickException("the report of this job has no page")
        if html == _STDOUT:
            write(found.html)
            return
        html.write_text(found.html, encoding="utf-8")
        line(f"the page is in {html}", err=True)
    values = json.loads(found.json)
    if output == "json":
        emit(values)
        return
    figures = values.get("figures", {}) if isinstance(values, dict) else {}
    _print({"FIGURE": list(figures), "VALUE": [_number(value) for value in figures.values()]})


def _watch(client: SyncClient, job_id: str, output: str, from_start: bool) -> int:
    """Show a job to its end; gives the exit code."""
    job = pb.DistillJob()
    draws = output == "text" and sys.stdout.isatty()
    try:
        with view_for(output) as view:
            for message in _follow(client, job_id, from_start or draws, view):
                view.take(message)
                if message.HasField("job"):
                    job = message.job
                    if job.state == pb.DISTILL_STATE_QUEUED and (others := _others(client, job.id)):
                        view.waits(others)
    except KeyboardInterrupt:
        line(f"the job goes on; watch it again with: ladr distill watch {job_id}", err=True)
        return 1
    if output == "text":
        _say_end(job)
    return 0 if job.state == pb.DISTILL_STATE_SUCCEEDED else 1


def _follow(client: SyncClient, job_id: str, from_start: bool, view: View) -> Iterator[pb.WatchDistillJobResponse]:
    """News of a job to its end, over restarts of the service; no progress comes twice."""
    seen = (0, 0)
    lost_s: float | None = None
    job = None
    while True:
        try:
            with client.watch_distill_job(job_id, from_start=from_start or job is not None) as news:
                for message in news:
                    lost_s = None
                    if message.HasField("job"):
                        if job is None and not from_start:
                            seen = _time(message.job.progress)
                        elif job and message.job.state == job.state and message.job.starts == job.starts:
                            continue  # what a new connection begins with
                        job = message.job
                    elif (at := _time(message.progress)) > seen:
                        seen = at
                    elif any(at):
                        continue
                    yield message
            return
        except (Unreachable, Draining):
            now_s = time.monotonic()
            if job is None or (lost_s is not None and now_s - lost_s > _PATIENCE_S):
                raise
            if lost_s is None:
                lost_s = now_s
                view.away(client.address)
            time.sleep(_AGAIN_S)


def _others(client: SyncClient, job_id: str) -> str:
    """Who has the devices, or may have them sooner; "": nobody."""
    with suppress(LadrError):  # the watch itself goes on
        running, waiting = (
            sum(other.id != job_id for other in client.distill_jobs(state)) for state in ("running", "queued")
        )
        if running + waiting:
            return f"it waits for a device: {running} running, {waiting} waiting beside it"
    return ""


def _time(progress: pb.DistillProgress) -> tuple[int, int]:
    return progress.time.seconds, progress.time.nanos


def _say_end(job: pb.DistillJob) -> None:
    if job.HasField("error"):
        for each in job.error.log:
            line(f"  {each}", err=True)
        line(f"{distill_state(job)}: {job.error.reason}: {job.error.message}", err=True)
    elif job.state == pb.DISTILL_STATE_SUCCEEDED:
        figures = ", ".join(f"{name} {_number(value)}" for name, value in sorted(job.figures.items()))
        line(f"student: {job.student_source}" + (f"; {figures}" if figures else ""))
        if job.int8_source:
            line(f"int8: {job.int8_source}")


def _show(found: Iterable[pb.DistillJob], output: str) -> None:
    if output == "json":
        for job in found:
            emit(as_dict(job))
        return
    jobs = list(found)
    _print(
        {
            "ID": [job.id for job in jobs],
            "STATE": [distill_state(job) for job in jobs],
            "PHASE": [phase_name(job.progress) for job in jobs],
            "STEP": [_step(job.progress) for job in jobs],
            "LOSS": [f"{job.progress.losses['total']:.4g}" if "total" in job.progress.losses else "-" for job in jobs],
            "TEACHER": [job.spec.teacher or "-" for job in jobs],
            "MADE": [job.created_at.ToDatetime(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for job in jobs],
            "ERROR": [job.error.reason or "-" for job in jobs],
        }
    )


def _print(columns: dict[str, list[str]]) -> None:
    if sys.stdout.isatty():
        console = Console()
        console.print(table(columns, console.width, ["MADE", "TEACHER", "LOSS"]))
    else:
        lines(columns)


def _step(progress: pb.DistillProgress) -> str:
    return f"{progress.step}/{progress.total_steps or '?'}" if progress.phase else "-"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)
