"""Pieces of an HTML page. What comes from records or specs is escaped here."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

MOST_TEXT = 1200
"""Characters of a text of somebody else's that are shown."""
_ALT = {
    "losses": "Curve of the training loss, by part",
    "agreement": "KL to the teacher and top-1 agreement, before training and after",
    "elo": "Elo of the student before and after training, with intervals, against the teacher",
    "refusals": "Share of harmful and of harmless prompts that teacher and student refuse",
    "cost": "Multiply-adds, memory and speed of teacher and student",
    "image_agreement": "Classes and neighbours that student and teacher agree on, before training and after",
    "image_cost": "Multiply-adds and memory of teacher and student",
}
_STYLE = (
    "body{font:16px/1.55 system-ui,sans-serif;margin:2em auto;max-width:54em;padding:0 1em;color:#1c1c1c;background:#fff}"
    "h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2em}table{border-collapse:collapse;margin:.8em 0;width:100%}"
    "th,td{padding:.35em .7em;text-align:left;vertical-align:top;border-bottom:1px solid #ddd}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}thead th{background:#f5f5f5}"
    "img{max-width:100%;height:auto}pre{background:#f5f5f5;padding:1em;overflow-x:auto;font-size:.85em}"
    "td.t{white-space:pre-wrap;overflow-wrap:anywhere}caption{text-align:left;color:#555}"
)


def frame(parts: Iterable[str]) -> str:
    """The page of these parts."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Distillation report</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><main>'
        f"{''.join(parts)}</main></body></html>\n"
    )


def headline(report: Mapping[str, Any], said: Iterable[str]) -> str:
    """What was made of what, and the main findings."""
    return (
        f"<h1>Distillation report</h1><p>Teacher: {text(report['teacher'])}. Student: {text(report['student'])}.</p>"
        f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in said)}</ul>"
    )


def job(spec: Mapping[str, Any]) -> str:
    """The job's spec."""
    rows = [
        (f"{group}.{key}", cell(value))
        for group, values in spec.items()
        for key, value in (values.items() if isinstance(values, Mapping) else (("", values),))
    ]
    return "<h2>The job</h2>" + table(("spec", "value"), [(name.rstrip("."), value) for name, value in rows])


def table(head: Iterable[str], rows: Iterable[Sequence[str]], note: str = "", texts: int = 0) -> str:
    """A table whose first column names its rows. Args: texts: so many columns at the left are long texts."""
    heads = "".join(f'<th scope="col">{text(one)}</th>' for one in head)
    body = "".join(f"<tr>{''.join(_td(place, cell, texts) for place, cell in enumerate(row))}</tr>" for row in rows)
    caption = f"<caption>{text(note)}</caption>" if note else ""
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _td(place: int, cell: str, texts: int) -> str:
    if place < texts:
        return f'<td class="t">{text(cell)}</td>'
    if not place:
        return f'<th scope="row">{text(cell)}</th>'
    return f'<td class="n">{text(cell)}</td>' if cell[:1].isdigit() or cell[:1] == "-" else f"<td>{text(cell)}</td>"


def picture(name: str, pictures: Mapping[str, bytes]) -> str:
    if name not in pictures:
        return ""
    return f'<p><img alt="{escape(_ALT[name])}" src="data:image/png;base64,{base64.b64encode(pictures[name]).decode()}"></p>'


def text(value: str) -> str:
    cut = value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}…"
    return escape(cut)


def cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    return "" if value is None else str(value)


def trained(report: Mapping[str, Any]) -> bool:
    """Whether the job had any step."""
    return bool(report["spec"]["training"]["steps"])


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def times(ratio: float) -> str:
    """With two digits: 0.99, 1.0, 12."""
    return f"{ratio:#.2g}".rstrip(".") if ratio < 10 else f"{ratio:.0f}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
