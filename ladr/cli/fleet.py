"""`ladr workers` and `ladr drain`: the workers as the router sees them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click
from google.protobuf.duration_pb2 import Duration
from rich.console import Console
from rich.live import Live

from ladr.cli.asking import address_option
from ladr.cli.output import as_dict, emit, line, lines, output_option, table
from ladr.sync_client import SyncClient
from ladr.v1.fleet_pb2 import MODEL_STATE_READY, ModelState, ModelStatus, WorkerState
from ladr.v1.router_pb2 import WorkerInfo

_WATCH_S = 1.0
HEADERS = (
    "WORKER", "STATE", "MODELS", "ENGINE", "SLOTS", "RUNNING", "QUEUED", "IN FLIGHT",
    "LATENCY ms", "ms/TOKEN", "WEIGHT %", "AGE s",
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
            _show(client.list_workers(model), output)
        elif output == "text" and sys.stdout.isatty():
            with Live(console=Console(), auto_refresh=False, screen=False) as live:
                while True:
                    live.update(table(HEADERS, map(row, client.list_workers(model))), refresh=True)
                    time.sleep(_WATCH_S)
        else:
            while True:
                _show(client.list_workers(model), output)
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
        info = client.drain_worker(worker, undo=undo)
    if output == "json":
        emit(as_dict(info))
    elif undo:
        line(f"{worker} is back in service")
    else:
        line(f"{worker} is draining; {_busy(info)} still to finish")


def row(info: WorkerInfo) -> Sequence[str]:
    """A worker's cells, in the order of HEADERS."""
    report, route = info.report, info.route
    return (
        report.worker_id,
        _state(info),
        ", ".join(_model(model) for model in report.models),
        report.engine,
        str(report.slots),
        str(report.running),
        str(report.queued),
        str(info.in_flight),
        _ms(route.latency) if route.HasField("latency") else "-",
        _ms(route.time_per_output_token) if route.HasField("time_per_output_token") else "-",
        f"{100 * route.weight:.1f}",
        f"{_seconds(info.age):.1f}",
    )


def _show(found: list[WorkerInfo], output: str) -> None:
    if output == "json":
        emit({"workers": [as_dict(info) for info in found]})
    elif not found:
        line("no workers: start one with `ladr worker`, and check that it reports to this router's bus", err=True)
    elif sys.stdout.isatty():
        Console().print(table(HEADERS, map(row, found)))
    else:
        lines(HEADERS, map(row, found))


def _state(info: WorkerInfo) -> str:
    state = WorkerState.Name(info.report.state) if info.report.state in WorkerState.values() else "UNKNOWN"
    name = state.removeprefix("WORKER_STATE_").lower()
    if info.eligible:
        return name
    return info.ineligible_reason if info.ineligible_reason in ("", name) else f"{name} ({info.ineligible_reason})"


def _model(model: ModelStatus) -> str:
    if model.state == MODEL_STATE_READY:
        return model.name
    state = ModelState.Name(model.state) if model.state in ModelState.values() else "UNKNOWN"
    return f"{model.name} ({state.removeprefix('MODEL_STATE_').lower()})"


def _busy(info: WorkerInfo) -> str:
    count = info.report.running + info.report.queued
    return f"{count} request{'' if count == 1 else 's'}"


def _ms(duration: Duration) -> str:
    return f"{1000 * _seconds(duration):.1f}"


def _seconds(duration: Duration) -> float:
    return duration.ToTimedelta().total_seconds()
