"""Options of the commands that ask for an answer, and how an answer is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ladr.answer import Event, reason_name
from ladr.channel import DEFAULT_ADDRESS
from ladr.cli.output import as_dict, emit, line, write
from ladr.sync_stream import SyncGeneration
from ladr.v1.generation_pb2 import FINISH_REASON_STOP, Delta, Finished, Started

F = TypeVar("F", bound=Callable[..., Any])


def target(_: click.Context, __: click.Parameter, value: str) -> str:
    """host:port, or another target that gRPC knows, such as dns:///name:port."""
    scheme, mark, _rest = value.partition("://")
    if mark and scheme in ("http", "https"):
        raise click.BadParameter(f"give HOST:PORT, without {scheme}://")
    if ":" not in value:
        raise click.BadParameter("give HOST:PORT")
    return value


address_option = click.option(
    "--address",
    metavar="HOST:PORT",
    callback=target,
    envvar="LADR_ADDRESS",
    default=DEFAULT_ADDRESS,
    show_default=True,
    help="Router; or $LADR_ADDRESS.",
)

_SAMPLING = (
    click.option("--max-tokens", type=int, help="Most tokens to generate."),
    click.option("--temperature", type=float, help="0 (greedy) to 2."),
    click.option("--top-p", type=float, help="Nucleus mass, over 0 up to 1."),
    click.option("--top-k", type=int, help="Keep the k most likely tokens."),
    click.option("--stop", multiple=True, help="String that ends the answer; may be given again."),
    click.option("--seed", type=int, help="Seed of the sampler."),
    click.option("--session-id", help="Requests of one session may be kept on one worker."),
    click.option("--priority", type=click.Choice(["high", "normal", "batch"]), help="Which requests give way."),
    click.option("--fairness-key", help="Whose request this is, where a router shares fairly."),
    click.option(
        "--first-token-within", type=click.FloatRange(min=0, min_open=True), help="Seconds to a first token of use."
    ),
    click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds for a whole answer."),
)


def asking_options(command: F) -> F:
    """Decorator: router, model and sampling; they arrive as keyword arguments of `Client.generate`."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return address_option(click.option("--model", help="Served name or alias; else the router's default.")(command))


def show(answer: SyncGeneration, output: str, pieces: list[str]) -> None:
    """Show an answer while it comes, keep its text in `pieces`, and end its last line also where it is cut."""
    try:
        for event in answer:
            if isinstance(event, Delta):
                pieces.append(event.text)
            if output == "json":
                _emit_event(event)
            elif isinstance(event, Delta):
                write(event.text)
    finally:
        if output == "text" and (any(pieces) or answer.finished):
            write("\n")
    if output == "text" and sys.stdout.isatty() and answer.finished:
        line(summary(answer.started, answer.finished), err=True)


def _emit_event(event: Event) -> None:
    """One event as a line of JSON, as it was on the wire."""
    kinds = {Started: "started", Delta: "delta", Finished: "finished"}
    emit({kinds[type(event)]: as_dict(event)})


def summary(started: Started | None, finished: Finished) -> str:
    """One line: who answered, how much, how fast."""
    started = started or Started()
    usage, timings = finished.usage, finished.timings
    first_s = timings.time_to_first_token.ToTimedelta().total_seconds()
    decode_s = timings.total.ToTimedelta().total_seconds() - first_s
    parts = [f"{usage.completion_tokens} tokens", f"first after {first_s * 1000:.0f} ms"]
    if decode_s > 0 and usage.completion_tokens > 1:
        parts.append(f"{(usage.completion_tokens - 1) / decode_s:.0f} tokens/s")
    if finished.reason != FINISH_REASON_STOP:
        parts.append(f"ended by {reason_name(finished).replace('_', ' ')}")
    if finished.resumed:
        parts.append("resumed")
    if started.attempt > 1:
        parts.append(f"attempt {started.attempt}")
    return f"{started.worker_id} ({started.model}): {', '.join(parts)}"
