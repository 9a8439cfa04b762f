"""Figures with their spread, in tables: for people, and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spread:
    """The median of rounds, with the least and the greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Spread:
        return cls(statistics.median(rounds), min(rounds), max(rounds))

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.least)}–{_short(self.greatest)})"

    def plain(self) -> dict[str, float]:
        return {"median": self.median, "least": self.least, "greatest": self.greatest}


Cell = str | int | float | Spread


@dataclass
class Table:
    """Rows under columns; the name of a column ends with its unit, if it has one."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    def __str__(self) -> str:
        lines = [list(self.columns), *([_text(cell) for cell in row] for row in self.rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        shown = [
            "  ".join(
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, *(f"  {line}" for line in shown)])

    def plain(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows}


@dataclass
class Report:
    """What one benchmark found; `notes` are sentences that the figures need beside them."""

    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.tables), *(["\n".join(self.notes)] if self.notes else [])])

    def plain(self) -> dict[str, Any]:
        return {"tables": [table.plain() for table in self.tables], "notes": self.notes}


def percentile(values: Sequence[float], share: float) -> float:
    """The value at a share (0 to 1) of the sorted values, the nearest one."""
    ordered = sorted(values)
    return ordered[min(round(share * (len(ordered) - 1)), len(ordered) - 1)]


def _short(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _text(cell: Cell) -> str:
    return _short(cell) if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else str(cell)


def _plain(cell: Cell) -> Any:
    return cell.plain() if isinstance(cell, Spread) else cell
