"""`ladr jobs`: requests that are kept until they are answered."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO, get_args

import click
from pydantic import TypeAdapter, ValidationError

from ladr.cli.asking import address_option, asking_options
from ladr.cli.batch import line_of, read_line
from ladr.cli.output import as_dict, emit, line, lines, output_option, write
from ladr.config_types import AnyDuration
from ladr.errors import InvalidRequest
from ladr.job_calls import State, state_name
from ladr.sync_client import SyncClient
from ladr.v1 import generations_pb2 as pb

_SHOWN_REFUSALS = 10
_FETCHERS = 16  # results fetched at once by an export
_WINDOW = 256  # jobs of which an export holds the results at a time
_state_option = click.option("--state", type=click.Choice(get_args(State)), help="Only jobs in this state.")


@click.group()
def jobs() -> None:
    """Keep requests until they are answered, whatever dies meanwhile.

    A job goes on when this command ends. Dead letters (`ladr jobs list --state dead`) can be requeued.
    """


class _Duration(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            found: timedelta = TypeAdapter(AnyDuration).validate_python(value)
        except ValidationError:
            self.fail("give a duration such as 90s, 5m or 2h", param, ctx)
        return found


@jobs.command()
@click.argument("prompt")
@click.option("--system", default="", help="What the model is told before.")
@click.option(
    "--id", "request_id", default="", help="Name of the job; the same name with the same request is the same job."
)
@click.option("--after", type=_Duration(), help="Begin no sooner than in this time: 2h.")
@click.option("--expire-after", type=_Duration(), help="Give it up if it is not answered within this time.")
@asking_options
@output_option
def submit(
    prompt: str,
    system: str,
    request_id: str,
    after: timedelta | None,
    expire_after: timedelta | None,
    address: str,
    output: str,
    **options: Any,
) -> None:
    """Submit PROMPT as a job; - reads it from stdin. Prints the job's name."""
    prompt = sys.stdin.read() if prompt == "-" else prompt
    if system:
        options["messages"] = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
        prompt = ""
    if options.pop("timeout"):
        raise click.UsageError("a job outlives the call: give --expire-after instead of --timeout")
    options = {name: value for name, value in options.items() if value is not None}
    not_before = datetime.now(UTC) + after if after else None
    with SyncClient(address) as client:
        job = client.submit_generation(
            prompt, request_id=request_id, not_before=not_before, expire_after=expire_after, **options
        )
    if output == "json":
        emit(as_dict(job))
    else:
        line(job.request_id)


@jobs.command()
@click.argument("name")
@address_option
@output_option
def get(name: str, address: str, output: str) -> None:
    """Show the job NAME, and its answer if it has one."""
    with SyncClient(address) as client:
        job = client.get_generation(name)
    if output == "json":
        emit(as_dict(job))
        return
    _table([job])
    if job.state == pb.GENERATION_STATE_SUCCEEDED:
        write(f"\n{job.result.text}\n")


@jobs.command()
@click.argument("name")
@address_option
@output_option
def watch(name: str, address: str, output: str) -> int:
    """Show the answer of the job NAME as it grows; one that has ended is shown whole. Exit code 1: it did not succeed."""
    attempt, job = 0, pb.Generation()
    with SyncClient(address) as client, client.watch_generation(name) as news:
        for message in news:
            if output == "json":
                emit(as_dict(message))
            elif message.HasField("delta"):
                if attempt not in (0, message.attempt):
                    line("\n[the attempt was lost; the answer begins anew]")
                attempt = message.attempt
                write(message.delta.text)
            if message.HasField("generation"):
                job = message.generation
    if output == "text":
        write("\n")
        if job.state != pb.GENERATION_STATE_SUCCEEDED:
            line(f"{state_name(job)}{f': {job.error.message}' if job.error.message else ''}", err=True)
    return 0 if job.state == pb.GENERATION_STATE_SUCCEEDED else 1


@jobs.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@address_option
@output_option
def cancel(names: tuple[str, ...], address: str, output: str) -> None:
    """Stop jobs, also at their workers."""
    with SyncClient(address) as client:
        _show((client.cancel_generation(name) for name in names), output)


@jobs.command()
@click.argument("names", nargs=-1, metavar="NAME…")
@click.option("--all", "every", is_flag=True, help="All dead letters.")
@address_option
@output_option
def requeue(names: tuple[str, ...], every: bool, address: str, output: str) -> None:
    """Give dead letters their attempts again."""
    if bool(names) == every:
        raise click.UsageError("give names, or --all")
    with SyncClient(address) as client:
        found = names if names else [job.request_id for job in client.generations("dead")]
        _show((client.requeue_generation(name) for name in found), output)


@jobs.command("list")
@_state_option
@click.option("--model", default="", help="Only jobs that ask for this model.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most jobs to show.")
@address_option
@output_option
def list_jobs(state: State | None, model: str, limit: int, address: str, output: str) -> None:
    """List jobs in the order of their acceptance."""
    with SyncClient(address) as client:
        _show(itertools.islice(client.generations(state, model), limit), output)


@jobs.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--prefix", default="", help="Goes before each custom_id in the job's name.")
@click.option("--model", default="", help="Model of the lines that name none.")
@address_option
@output_option
def import_jobs(file: TextIO, prefix: str, model: str, address: str, output: str) -> int:
    """Submit each line of FILE, in the shape of OpenAI's batch files; - reads stdin.

    A line whose job is there already is not submitted twice, so a broken import can be repeated. Exit code 1: lines were
    refused.
    """
    wrong: list[tuple[int, str]] = []
    broken = 0

    def requests() -> Iterator[pb.SubmitGenerationRequest]:
        nonlocal broken
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                yield read_line(text, prefix, model)
            except InvalidRequest as error:
                broken += 1
                if len(wrong) < _SHOWN_REFUSALS:
                    wrong.append((number, error.message))

    with SyncClient(address) as client:
        answer = client.submit_generations(requests())
    refused = answer.refused + broken
    if output == "json":
        emit({"accepted": answer.accepted, "existing": answer.existing, "refused": refused})
    else:
        line(f"{answer.accepted} accepted, {answer.existing} there already, {refused} refused")
    for number, message in wrong:
        line(f"line {number}: {message}", err=True)
    for refusal in list(answer.refusals)[:_SHOWN_REFUSALS]:
        line(f"{refusal.request_id}: {refusal.error.message}", err=True)
    return 1 if refused else 0


@jobs.command("export")
@_state_option
@click.option("--prefix", default="", help="Only jobs whose name begins so; it is left out of their custom_id.")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Where to write; else stdout.")
@address_option
def export_jobs(state: State | None, prefix: str, file: Path | None, address: str) -> None:
    """Write the jobs that have ended as lines in the shape of OpenAI's batch output."""
    with SyncClient(address) as client, ThreadPoolExecutor(_FETCHERS) as fetchers:
        names = (
            job.request_id
            for job in client.generations(state)
            if job.state > pb.GENERATION_STATE_RUNNING and job.request_id.startswith(prefix)
        )
        with click.open_file(str(file) if file else "-", "w", encoding="utf-8") as out:
            while window := list(itertools.islice(names, _WINDOW)):
                for job in fetchers.map(client.get_generation, window):
                    out.write(json.dumps(line_of(job, prefix), ensure_ascii=False) + "\n")


def _show(found: Iterable[pb.Generation], output: str) -> None:
    if output == "json":
        for job in found:
            emit(as_dict(job))
    else:
        _table(list(found))


def _table(found: list[pb.Generation]) -> None:
    lines(
        {
            "NAME": [job.request_id for job in found],
            "STATE": [state_name(job) for job in found],
            "MODEL": [job.model or "-" for job in found],
            "ATTEMPTS": [str(job.attempts) for job in found],
            "ACCEPTED": [_time(job) for job in found],
            "ERROR": [job.error.message or "-" for job in found],
        }
    )


def _time(job: pb.Generation) -> str:
    return job.created_at.ToDatetime(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
