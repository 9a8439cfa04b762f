"""`ladr chat`: a talk with memory, or one question."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from ladr.cli.asking import asking_options, show
from ladr.cli.output import line, output_option
from ladr.errors import LadrError
from ladr.sync_client import SyncClient

Turns = list[dict[str, str]]


@click.command()
@click.argument("prompt", required=False)
@click.option("--system", default="", help="What the model is told before all else.")
@asking_options
@output_option
def chat(prompt: str | None, system: str, address: str, output: str, **options: Any) -> None:
    """Talk with a model, or ask it PROMPT and end. Ctrl-C stops an answer, Ctrl-D ends the talk."""
    if prompt == "":
        raise click.UsageError("the prompt is empty; give one, or leave it out to talk")
    turns: Turns = [{"role": "system", "content": system}] if system else []
    with SyncClient(address) as client:
        if prompt is not None:
            turns.append({"role": "user", "content": prompt})
            _answer(client, turns, [], output, options)
            return
        for said in _lines():
            turns.append({"role": "user", "content": said})
            pieces: list[str] = []
            try:
                _answer(client, turns, pieces, output, options)
            except KeyboardInterrupt:
                if not any(pieces):
                    line()
                line("(stopped)", err=True)
            except LadrError as error:
                if not sys.stdin.isatty():
                    raise
                line(f"ladr: {error}", err=True)
            if pieces:
                turns.append({"role": "assistant", "content": "".join(pieces)})
            else:
                turns.pop()


def _answer(client: SyncClient, turns: Turns, pieces: list[str], output: str, options: dict[str, Any]) -> None:
    with client.generate(messages=turns, **options) as answer:
        show(answer, output, pieces)


def _lines() -> Iterator[str]:
    """What a person types, with a history of lines; or the lines of a pipe. Ends at Ctrl-D."""
    if not sys.stdin.isatty():
        yield from filter(None, (said.strip() for said in sys.stdin))
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # gives input() its history and editing
    while True:
        try:
            said = input("› ").strip()
        except EOFError:
            line()
            return
        except KeyboardInterrupt:
            line()
            continue
        if said:
            yield said
