"""Recorded arrivals: JSON Lines, one request a line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ladr.bench.arrivals import Arrival

MAX_LINES = 1_000_000


class TraceError(ValueError):
    """The file is no trace; the message names the line."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    at_s: float = Field(ge=0)
    prompt_tokens: int = Field(ge=1, le=10_000_000)
    answer_tokens: int = Field(ge=1, le=10_000_000)
    model: str = Field("", max_length=128)
    session_id: str = Field("", max_length=128)
    priority: Literal["high", "normal", "batch"] | None = None


def read_trace(file: Path) -> list[Arrival]:
    """The requests of a trace in order of time; empty lines are passed over.

    Raises: TraceError: a line is wrong, there is none, or there are too many.
    """
    arrivals: list[Arrival] = []
    try:
        with file.open(encoding="utf-8") as opened:
            for number, line in enumerate(opened, 1):
                if number > MAX_LINES:
                    raise TraceError(f"{file}: more than {MAX_LINES:,} lines; cut it")
                if line.strip():
                    arrivals.append(_arrival(line, f"{file}:{number}"))
    except UnicodeDecodeError as error:
        raise TraceError(f"{file}: not UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror}") from None
    if not arrivals:
        raise TraceError(f"{file}: no requests in it")
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def _arrival(line: str, place: str) -> Arrival:
    try:
        return Arrival(**_Line.model_validate_json(line).model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise TraceError(f"{place}: unknown key '{key}'; known are {', '.join(_Line.model_fields)}") from None
        raise TraceError(f"{place}: {f'{key}: ' if key else ''}{first['msg']}") from None
