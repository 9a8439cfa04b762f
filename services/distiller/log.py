"""A trainer's log: kept small while it grows, and its last lines, fit for a terminal."""

from __future__ import annotations

import os
from pathlib import Path

from services.distiller.place import write_whole

MOST_BYTES = 4 << 20
_LINES, _LINE = 50, 500
_TAIL_BYTES = 64 << 10


def keep_small(path: Path, most_bytes: int = MOST_BYTES) -> None:
    """Once it is over that size, its newer half goes to NAME.1 and it begins anew; who writes must append."""
    try:
        if path.stat().st_size <= most_bytes:
            return
    except FileNotFoundError:
        return
    write_whole(_older(path), _tail(path, most_bytes // 2))
    os.truncate(path, 0)


def last_lines(path: Path) -> tuple[str, ...]:
    """At most 50 lines of at most 500 characters; control bytes are escaped."""
    lines = [_shown(line) for line in _text(path).splitlines()]
    if len(lines) < _LINES:
        lines = [*(_shown(line) for line in _text(_older(path)).splitlines()), *lines]
    return tuple(line for line in lines if line)[-_LINES:]


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _text(path: Path) -> str:
    return _tail(path, _TAIL_BYTES).decode(errors="replace")


def _tail(path: Path, most_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            return file.read(most_bytes)
    except FileNotFoundError:
        return b""


def _shown(line: str) -> str:
    text = line.replace("\t", " ").rstrip()[:_LINE]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
