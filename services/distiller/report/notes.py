"""What was measured already, as files of the report's directory: a part that is there, and whole, is not measured again.

NAME.json     a part that was measured at once
NAME.jsonl    a part that was measured a batch at a time, with a batch in each line
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from services.distiller.place import write_whole

T = TypeVar("T")


@dataclass(frozen=True)
class Notes:
    """The notes in a directory."""

    root: Path

    def once(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The part of this name, which is measured if it is not there."""
        if self.missing(name):
            write_whole(self.root / f"{name}.json", dumped(measure()))
        found: dict[str, Any] = json.loads((self.root / f"{name}.json").read_bytes())
        return found

    def missing(self, *names: str) -> list[str]:
        """Those parts of them that are not measured at all."""
        return [name for name in names if not self._there(name)]

    def complete(self, name: str, batches: int) -> bool:
        """Whether all batches of a part are there: what it is measured with need not be loaded then."""
        return len(self._lines(name)) >= batches

    def each(self, name: str, batches: Iterable[T], measure: Callable[[T], Iterable[Any]]) -> Iterator[list[Any]]:
        """What `measure` makes of each batch, once it is written down; those that are there are not measured again."""
        file = self.root / f"{name}.jsonl"
        lines = self._lines(name)
        write_whole(file, b"".join(lines))  # without a line that a kill tore
        with file.open("ab") as notes:
            for number, batch in enumerate(batches):
                if number == len(lines):
                    lines.append(dumped(list(measure(batch)), indent=None) + b"\n")
                    notes.write(lines[number])
                    notes.flush()
                    os.fsync(notes.fileno())
                yield json.loads(lines[number])

    def _there(self, name: str) -> bool:
        try:
            return _is(dict, (self.root / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return False

    def _lines(self, name: str) -> list[bytes]:
        try:
            lines = (self.root / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return list(takewhile(lambda line: line.endswith(b"\n") and _is(list, line), lines))


def _is(kind: type, text: bytes) -> bool:
    """Whether a text is JSON of that kind, and not empty."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, kind) and bool(found)


def dumped(value: Any, indent: int | None = 1) -> bytes:
    """As JSON; a number that is not finite becomes null, for JSON has none."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
