"""A job's progress as those who look at it read it: the newest, the last so many, or what comes after."""

from __future__ import annotations

import os

from google.protobuf.json_format import Parse, ParseError

from ladr.v1.distiller_pb2 import DistillProgress
from services.distiller.place import Place

MOST_BACK = 10_000  # lines of the past that a watcher may have
_TAIL_BYTES = 64 << 10


def newest(place: Place) -> DistillProgress | None:
    """The last whole line. None: there is none."""
    try:
        with place.progress.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[:-1]):
        try:
            return Parse(line, DistillProgress())
        except (ParseError, UnicodeDecodeError):
            continue
    return None


def end(place: Place) -> int:
    """The byte behind the last whole line."""
    try:
        with place.progress.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - _TAIL_BYTES)
            file.seek(start)
            return start + file.read(size - start).rfind(b"\n") + 1
    except OSError:
        return 0


def back(place: Place, lines: int = MOST_BACK) -> int:
    """The byte at which the last `lines` whole lines begin."""
    at = whole = end(place)
    found = -1  # the end of the last line is no line before it
    try:
        with place.progress.open("rb") as file:
            while at:
                size = min(at, _TAIL_BYTES)
                file.seek(at - size)
                block = file.read(size)
                if found + block.count(b"\n") >= lines:
                    for _ in range(lines - found):
                        size = block.rfind(b"\n", 0, size)
                    return at - len(block) + size + 1
                found += block.count(b"\n")
                at -= size
    except OSError:
        return whole
    return 0
