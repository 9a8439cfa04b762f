"""`ladr workers` and `ladr drain`: the workers as the router sees them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import click
from google.protobuf.duration_pb2 import Duration
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ladr.cli.asking import address_option
from ladr.cli.output import as_dict, emit, line, lines, output_option, table
from ladr.errors import NotFound
from ladr.sync_client import SyncClient
from ladr.v1.fleet_pb2 import MODEL_STATE_READY, ModelState, ModelStatus, WorkerState
from ladr.v1.router_pb2 import Route, WorkerInfo

_WATCH_S = 1.0
# Columns that a narrow terminal loses, the first first.
_LEAST = (
    "ENGINE", "MODELS", "SLOTS", "ms/\nTOKEN", "IN\nFLIGHT", "LATENCY\nms", "AGE\ns", "QUEUED", "RUNNING",
    "SHARE\nOF ALL %", "SHARE OF\nMODEL %",
)  # fmt: skip


@click.command()
@click.option("--model", default="", help="Only workers that serve this model or alias.")
@click.option("--watch", is_flag=True, help="Again every second, until Ctrl-C.")
@address_option
@output_option
def workers(model: str, watch: bool, address: str, output: str) -> None:
    """Show the workers and their load.

    Whether each may get requests (and why not), what it does, and its share of new requests.
    """
    with SyncClient(address) as client:
        if not watch:
            _show(client, model, output)
            return
        with suppress(KeyboardInterrupt):
            if output == "text" and sys.stdout.isatty():
                console = Console()
                with Live(console=console, auto_refresh=False, screen=False) as live:
                    while True:
                        live.update(fleet_table(*_found(client, model), console.width), refresh=True)
                        time.sleep(_WATCH_S)
            while True:
                _show(client, model, output)
                sys.stdout.flush()
                time.sleep(_WATCH_S)


@click.command()
@click.argument("worker")
@click.option("--undo", is_flag=True, help="Take it back into service.")
@address_option
@output_option
def drain(worker: str, undo: bool, address: str, output: str) -> None:
    """Take WORKER out of service.

    It finishes what it has and gets nothing new.
    """
    with SyncClient(address) as client:
        try:
            info = client.drain_worker(worker, undo=undo)
        except NotFound:
            raise NotFound(f"no worker '{worker}'; `ladr workers` names them") from None
    if output == "json":
        emit(as_dict(info))
    elif undo:
        line(f"{worker} is back in service")
    else:
        line(f"{worker} is draining; {_busy(info)} still to finish")


def fleet_table(found: Sequence[WorkerInfo], shares: Mapping[str, float] | None, width: int) -> Table:
    """The workers as a table for a terminal of that width. `shares`: of a model's requests, where one was asked for."""
    return table(_columns(found, shares), width, _LEAST)


def _found(client: SyncClient, model: str) -> tuple[list[WorkerInfo], dict[str, float] | None]:
    """The workers, and, of one model, the share of its requests that each gets."""
    found = client.list_workers(model)
    if not model:
        return found, None
    with client.watch_routes(model) as tables:
        return found, {route.worker_id: route.weight for route in next(tables).routes}


def _columns(found: Sequence[WorkerInfo], shares: Mapping[str, float] | None) -> dict[str, list[str]]:
    def column(cell: Callable[[WorkerInfo], object]) -> list[str]:
        return [str(cell(info)) for info in found]

    def share(info: WorkerInfo) -> str:
        weight = info.route.weight if shares is None else shares.get(info.report.worker_id, 0.0)
        return f"{100 * weight:.1f}"

    return {
        "WORKER": column(lambda info: info.report.worker_id),
        "STATE": column(_state),
        "MODELS": column(lambda info: ", ".join(_model(model) for model in info.report.models)),
        "ENGINE": column(lambda info: info.report.engine),
        "SLOTS": column(lambda info: info.report.slots),
        "RUNNING": column(lambda info: info.report.running),
        "QUEUED": column(lambda info: info.report.queued),
        "IN\nFLIGHT": column(lambda info: info.in_flight),
        "LATENCY\nms": column(lambda info: _ms(info.route, "latency")),
        "ms/\nTOKEN": column(lambda info: _ms(info.route, "time_per_output_token")),
        "SHARE\nOF ALL %" if shares is None else "SHARE OF\nMODEL %": column(share),
        "AGE\ns": column(lambda info: f"{_seconds(info.age):.1f}" if info.HasField("age") else "-"),
    }


def _show(client: SyncClient, model: str, output: str) -> None:
    if output == "json":
        emit({"workers": [as_dict(info) for info in client.list_workers(model)]})
        return
    found, shares = _found(client, model)
    if not found:
        line("no workers: start one with `ladr worker`, and check that it reports to this router's bus", err=True)
    elif sys.stdout.isatty():
        console = Console()
        console.print(fleet_table(found, shares, console.width))
    else:
        lines(_columns(found, shares))


def _state(info: WorkerInfo) -> str:
    state = WorkerState.Name(info.report.state) if info.report.state in WorkerState.values() else "UNKNOWN"
    return (not info.eligible and info.ineligible_reason) or state.removeprefix("WORKER_STATE_").lower()


def _model(model: ModelStatus) -> str:
    if model.state == MODEL_STATE_READY:
        return model.name
    state = ModelState.Name(model.state) if model.state in ModelState.values() else "UNKNOWN"
    return f"{model.name} ({state.removeprefix('MODEL_STATE_').lower()})"


def _busy(info: WorkerInfo) -> str:
    count = info.report.running + info.report.queued
    return f"{count} request{'' if count == 1 else 's'}"


def _ms(route: Route, field: str) -> str:
    return f"{1000 * _seconds(getattr(route, field)):.1f}" if route.HasField(field) else "-"


def _seconds(duration: Duration) -> float:
    return duration.ToTimedelta().total_seconds()
