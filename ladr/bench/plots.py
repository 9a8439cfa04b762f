"""Pictures of a benchmark, and the page that has them: a PNG, and an HTML file that needs nothing beside it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ladr.bench.report import columns
from ladr.bench.run import Tally

_WIDTH_IN, _ROW_IN, _DPI = 13.0, 3.4, 110
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:78em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}"
    "th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}img{max-width:100%}dt{font-weight:600}"
)


def write_report(where: Path, document: Mapping[str, Any], tallies: Sequence[Tally]) -> list[Path]:
    """Write the page, the picture, or in a directory both; gives the files. `document`: what `-o json` prints.

    Raises: OSError: it cannot be written there.
    """
    png = _png(tallies)
    files = {
        ".png": {where: png},
        ".html": {where: _page(document, png).encode()},
    }.get(where.suffix) or {where / "bench.png": png, where / "bench.html": _page(document, png).encode()}
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return list(files)


def _png(tallies: Sequence[Tally]) -> bytes:
    """For each scenario: TTFT by policy as a distribution and over time, then the workers' load under each policy."""
    rows: list[list[Any]] = []
    for _, group in groupby(tallies, key=lambda tally: tally.load.scenario):
        alike = list(group)
        rows.append([(_distribution, alike), (_over_time, alike)])
        loads = [(_loads, tally) for tally in alike if tally.turns[0].loads.by_worker]
        rows += [loads[at : at + 2] for at in range(0, len(loads), 2)]
    figure = Figure(figsize=(_WIDTH_IN, _ROW_IN * len(rows)), layout="constrained", dpi=_DPI)
    grid = figure.subplots(len(rows), 2, squeeze=False)
    for axes_of_row, row in zip(grid, rows, strict=True):
        for axes, cell in zip(axes_of_row, row, strict=False):
            draw, what = cell
            draw(axes, what)
        for axes in axes_of_row[len(row) :]:
            axes.set_axis_off()
    made = io.BytesIO()
    figure.savefig(made, format="png")
    return made.getvalue()


def _distribution(axes: Axes, tallies: Sequence[Tally]) -> None:
    """Share of the first tokens that came within a time."""
    for tally in tallies:
        points = list(tally.measurement.ttft.distribution())
        axes.step([s for s, _ in points], [share for _, share in points], where="post", label=_name(tally))
    axes.set(title=f"{tallies[0].load.scenario}: time to the first token", xlabel="seconds", ylabel="share within")
    axes.set_xscale("log")
    axes.axvline(tallies[0].load.slo.ttft_s, color="grey", linestyle=":", linewidth=1)
    _finish(axes)


def _over_time(axes: Axes, tallies: Sequence[Tally]) -> None:
    for number, tally in enumerate(tallies):
        total = tally.measurement
        for percent, style in ((50, ":"), (99, "-")):
            points = total.ttft_over_time(percent)
            label = f"{_name(tally)} p{percent}"
            axes.plot([at for at, _ in points], [s for _, s in points], style, color=f"C{number % 10}", label=label)
    axes.set(
        title=f"{tallies[0].load.scenario}: first token over time",
        xlabel="seconds after the start",
        ylabel="seconds",
        yscale="log",
    )
    _finish(axes)


def _loads(axes: Axes, tally: Tally) -> None:
    for worker, samples in sorted(tally.turns[0].loads.by_worker.items()):
        axes.plot([at for at, _ in samples], [count for _, count in samples], linewidth=1, label=worker)
    title = f"{tally.load.scenario}, {_name(tally)}: requests at each worker (first round)"
    axes.set(title=title, xlabel="seconds after the start", ylabel="running + waiting")
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="x-small")


def _name(tally: Tally) -> str:
    return tally.policy or "the router"


def _page(document: Mapping[str, Any], png: bytes) -> str:
    table = columns(document["results"])
    head = "".join(f"<th>{escape(header)}</th>" for header in table)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in zip(*table.values(), strict=True)
    )
    facts = {**document["machine"], "scale": document["scale"]}
    told = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
    noted = "".join(
        f"<li>{escape(each['scenario'])}, {escape(each['policy'] or 'the router')}: {escape(note)}</li>"
        for each in document["results"]
        for note in each["notes"]
    )
    picture = base64.b64encode(png).decode()
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>ladr bench</title><style>{_STYLE}</style>"
        f"<h1>ladr bench</h1><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f'<ul>{noted}</ul><p><img alt="latency and load" src="data:image/png;base64,{picture}">'
        f"<dl>{told}</dl></html>\n"
    )
