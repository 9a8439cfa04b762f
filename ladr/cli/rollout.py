"""`ladr distill publish|rollouts|rollout|rollback`: students on their way into service."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from datetime import UTC, timedelta
from typing import Any

import click
import yaml
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ladr.cli.distill import address_option
from ladr.cli.output import as_dict, emit, escape, line, lines, output_option, table, write
from ladr.config_types import Duration
from ladr.distill_calls import rollout_state
from ladr.errors import Draining, Unreachable
from ladr.sync_client import SyncClient
from ladr.v1 import distiller_pb2 as pb

_PATIENCE_S = 600.0  # how long a watch waits for a service that went away
_AGAIN_S = 1.0
_LINE_S = 10.0  # in a pipe: between two lines in which nothing has moved


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> timedelta | None:
    if value is None:
        return None
    try:
        found: timedelta = TypeAdapter(Duration).validate_python(value)
    except ValidationError:
        raise click.BadParameter("give a duration over 0, such as 90s or 5m") from None
    return found


def _stages(_: click.Context, __: click.Parameter, value: str | None) -> list[float]:
    try:
        return [float(part) for part in value.split(",")] if value else []
    except ValueError:
        raise click.BadParameter("give shares with commas between, such as 0.05,0.5,1") from None


@click.command()
@click.argument("job")
@click.option("--name", required=True, help="What clients ask for: a model or an alias.")
@click.option("--model", default="", help="Served name of the student. Default: NAME, a dash, the end of the job's id.")
@click.option(
    "--worker",
    "workers",
    multiple=True,
    metavar="ID",
    help="Load it there; may be given again. Default: all that answer for NAME.",
)
@click.option("--int8", is_flag=True, help="Its INT8 form; its name ends in -int8 then, unless --model is given.")
@click.option("--stages", callback=_stages, metavar="SHARES", help="Of the requests, ascending. Default: 0.05,0.5,1.")
@click.option(
    "--stage-time", callback=_duration, metavar="DURATION", help="How long a stage lasts at least. Default: 5m."
)
@click.option(
    "--stage-requests", type=click.IntRange(0, 2**32 - 1), help="Requests answered in a stage, at least. Default: 50."
)
@click.option(
    "--stage-timeout", callback=_duration, metavar="DURATION", help="Back after so long in a stage. Default: 24h."
)
@click.option(
    "--error-margin", type=float, help="Back if so much more of its requests fail, as a share. Default: 0.02."
)
@click.option(
    "--latency-ratio",
    type=float,
    help="Back if its first token, or each token after it, takes so many times longer. Default: 1.5.",
)
@click.option("--request-id", default="", help="The same name with the same request is the same roll-out.")
@click.option("--watch", "watches", is_flag=True, help="Watch it to its end; else its id is printed.")
@address_option
@output_option
def publish(
    job: str,
    stage_time: timedelta | None,
    stage_timeout: timedelta | None,
    watches: bool,
    address: str,
    output: str,
    **options: Any,
) -> int:
    """Put the student of JOB into service: more and more of what asks for NAME, and back if it does worse.

    It goes on when this command ends. Exit code of --watch: 1 if it did not succeed.
    """
    request = pb.PublishStudentRequest(id=job, **{key: value for key, value in options.items() if value is not None})
    if stage_time is not None:
        request.stage_time.FromTimedelta(stage_time)
    if stage_timeout is not None:
        request.stage_timeout.FromTimedelta(stage_timeout)
    with SyncClient(address) as client:
        rollout = client.publish_student(request)
        if watches:
            return _watch(client, rollout.id, output)
    if output == "json":
        emit(as_dict(rollout))
    else:
        line(rollout.id)
    return 0


@click.command()
@address_option
@output_option
def rollouts(address: str, output: str) -> None:
    """List roll-outs, newest first."""
    with SyncClient(address) as client:
        _show(client.rollouts(), output)


@click.command()
@click.argument("id")
@click.option("--watch", "watches", is_flag=True, help="Watch it to its end. Exit code 1: it did not succeed.")
@address_option
@output_option
def rollout(id: str, watches: bool, address: str, output: str) -> int:
    """Show all of the roll-out ID."""
    with SyncClient(address) as client:
        if watches:
            return _watch(client, id, output)
        found = client.get_rollout(id)
    if output == "json":
        emit(as_dict(found))
    else:
        write(yaml.safe_dump(as_dict(found), sort_keys=False, allow_unicode=False))
    return 0


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@address_option
@output_option
def rollback(ids: tuple[str, ...], address: str, output: str) -> None:
    """Take students back: the models that were there before have all the requests again."""
    with SyncClient(address) as client:
        _show((client.cancel_rollout(each) for each in ids), output)


def _watch(client: SyncClient, rollout_id: str, output: str) -> int:
    """Show a roll-out to its end; gives the exit code."""
    last, shown = pb.Rollout(), None
    shown_s = 0.0
    live = Live(auto_refresh=False) if output == "text" and sys.stdout.isatty() else None
    try:
        with live or nullcontext():
            for last in _follow(client, rollout_id):
                moved, now_s = (last.state, last.stage, last.share), time.monotonic()
                if output == "json":
                    emit(as_dict(last))
                elif live:
                    live.update(Text(escape(_line(last))), refresh=True)
                elif moved != shown or now_s - shown_s >= _LINE_S:
                    line(_line(last))
                    shown, shown_s = moved, now_s
                sys.stdout.flush()
    except KeyboardInterrupt:
        line(f"the roll-out goes on; watch it again with: ladr distill rollout --watch {rollout_id}", err=True)
        return 1
    return 0 if last.state == pb.ROLLOUT_STATE_SUCCEEDED else 1


def _follow(client: SyncClient, rollout_id: str) -> Iterator[pb.Rollout]:
    """A roll-out to its end, over restarts of the service."""
    lost_s: float | None = None
    begun = False
    while True:
        try:
            with client.watch_rollout(rollout_id) as news:
                for each in news:
                    lost_s, begun = None, True
                    yield each
            return
        except (Unreachable, Draining):
            now_s = time.monotonic()
            if not begun or (lost_s is not None and now_s - lost_s > _PATIENCE_S):
                raise
            if lost_s is None:
                lost_s = now_s
                line(f"{client.address} does not answer; waiting for it", err=True)
            time.sleep(_AGAIN_S)


def _line(rollout: pb.Rollout) -> str:
    sides = [f"{name} {_tally(side)}" for name, side in (("student", rollout.student), ("others", rollout.others))]
    return "  ".join([rollout_state(rollout), f"{100 * rollout.share:.3g} %", *sides, rollout.reason])


def _tally(side: pb.RolloutTally) -> str:
    """312 ok, 2 failed, 41 ms, 9.5 ms a token."""
    parts = [f"{side.succeeded} ok", f"{side.failed} failed"]
    if side.HasField("time_to_first_token"):
        parts.append(f"{1000 * side.time_to_first_token.ToTimedelta().total_seconds():.0f} ms")
    if side.HasField("time_per_output_token"):
        parts.append(f"{1000 * side.time_per_output_token.ToTimedelta().total_seconds():.1f} ms a token")
    return ", ".join(parts)


def _show(found: Iterable[pb.Rollout], output: str) -> None:
    if output == "json":
        for each in found:
            emit(as_dict(each))
        return
    all_of_them = list(found)
    columns = {
        "ID": [one.id for one in all_of_them],
        "NAME": [one.request.name for one in all_of_them],
        "MODEL": [one.request.model for one in all_of_them],
        "STATE": [rollout_state(one) for one in all_of_them],
        "STAGE": [f"{one.stage + 1}/{len(one.request.stages)}" for one in all_of_them],
        "SHARE": [f"{100 * one.share:.3g} %" for one in all_of_them],
        "CHANGED": [one.changed_at.ToDatetime(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for one in all_of_them],
        "REASON": [one.reason for one in all_of_them],
    }
    if sys.stdout.isatty():
        console = Console()
        console.print(table(columns, console.width, ["CHANGED", "MODEL"]))
    else:
        lines(columns)


COMMANDS = (publish, rollouts, rollout, rollback)  # of `ladr distill`
