"""What commands print: for people on a terminal, plain lines into a pipe, JSON if asked for."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import click
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    help="json: one document, or JSON Lines where it goes on.",
)

# Invisible characters that turn the order of the text round (category Cf, which also has joiners that scripts need).
_TURNERS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escape(text: str, keep: str = "") -> str:
    """Text in which nothing but `keep` moves a terminal: control characters become \\x1b, \\u202e…"""
    if text.isprintable() and text.isascii():
        return text
    return "".join(
        c if c in keep or not _acts(c) else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def _acts(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _TURNERS


def write(text: str) -> None:
    """Model output to stdout, at once: as it is into a pipe, escaped on a terminal."""
    click.echo(escape(text, keep="\n\t") if sys.stdout.isatty() else text, nl=False)


def line(text: str = "", *, err: bool = False) -> None:
    """One line for a person; escaped wherever it goes."""
    click.echo(escape(text), err=err)


def emit(document: Any) -> None:
    """One JSON document on one line of stdout."""
    click.echo(json.dumps(document))


def as_dict(message: Message) -> dict[str, Any]:
    """A message in the proto3 JSON mapping, by its proto names, with what is zero in it too."""
    made: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return made


Columns = Mapping[str, Sequence[str]]  # header, in which a line may end → its cells


def table(columns: Columns, width: int, least: Sequence[str]) -> Table:
    """A table for a terminal of that width; its cells are escaped, and no markup is read from them.

    Where it would be too wide it loses columns, the first of `least` first. What is left is broken, never cut.
    """
    shown = dict(columns)
    for header in least:
        if Console(width=100_000).measure(_table(shown)).maximum <= width:
            break
        shown.pop(header, None)
    return _table(shown)


def _table(columns: Columns) -> Table:
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for header in columns:
        made.add_column(header, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        made.add_row(*(Text(escape(cell)) for cell in row))
    return made


def lines(columns: Columns) -> None:
    """The same into a pipe, with all columns: a line a row, tabs between."""
    headers = [header.replace("\n", " ") for header in columns]
    for row in (headers, *zip(*columns.values(), strict=True)):
        line_of = "\t".join(escape(cell) for cell in row)
        click.echo(line_of)
