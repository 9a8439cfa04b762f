"""`report.html`: the report for a reader, one page with its pictures in it. What comes from records or specs is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from services.distiller.report.elo import DRAWS, LEVEL, PRIOR_WINS

MOST_TEXT = 1200
"""Characters of a text of somebody else's that are shown."""
_ALT = {
    "losses": "Curve of the training loss, by part",
    "agreement": "KL to the teacher and top-1 agreement, before training and after",
    "elo": "Elo of the student before and after training, with intervals, against the teacher",
    "refusals": "Share of harmful and of harmless prompts that teacher and student refuse",
    "cost": "Multiply-adds, memory and speed of teacher and student",
}
_STYLE = (
    "body{font:16px/1.55 system-ui,sans-serif;margin:2em auto;max-width:54em;padding:0 1em;color:#1c1c1c;background:#fff}"
    "h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2em}table{border-collapse:collapse;margin:.8em 0;width:100%}"
    "th,td{padding:.35em .7em;text-align:left;vertical-align:top;border-bottom:1px solid #ddd}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}thead th{background:#f5f5f5}"
    "img{max-width:100%;height:auto}pre{background:#f5f5f5;padding:1em;overflow-x:auto;font-size:.85em}"
    "td.t{white-space:pre-wrap;overflow-wrap:anywhere}caption{text-align:left;color:#555}"
)


def page(report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """The page. Args: report: what report.json has. pictures: PNGs by name."""
    parts = [
        _summary(report),
        _agreement(report),
        _picture("agreement", pictures),
        _picture("losses", pictures),
        _cost(report),
        _picture("cost", pictures),
        _arena(report),
        _picture("elo", pictures) + _battles(report),
        _refusals(report),
        _picture("refusals", pictures) + _refused(report),
        _int8(report),
        _spec(report),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Distillation report</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><main>'
        f"{''.join(parts)}</main></body></html>\n"
    )


def _summary(report: Mapping[str, Any]) -> str:
    figures = report["figures"]
    said = [
        f"The student needs {_percent(figures['saved_total'])} less compute a token than its teacher, and writes"
        f" {_number(figures['speed_ratio'])} times as many tokens a second on this machine.",
        f"Training moved its KL to the teacher from {_number(figures['kl_untrained'])} to {_number(figures['kl'])} nats a"
        f" token; it holds the same token for the likeliest in {_percent(figures['top1'])} of all places"
        f" (before: {_percent(figures['top1_untrained'])}).",
    ]
    if "elo" in figures:
        said.append(
            f"Its Elo is {figures['elo']:.0f} (between {figures['elo_low']:.0f} and {figures['elo_high']:.0f}) against the"
            f" teacher's {report['arena']['teacher_elo']:.0f}; before training it was {figures['elo_untrained']:.0f}."
        )
    return (
        f"<h1>Distillation report</h1><p>Teacher: {_text(report['teacher'])}. Student: {_text(report['student'])}.</p>"
        f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in said)}</ul>"
    )


def _agreement(report: Mapping[str, Any]) -> str:
    figures = report["figures"]
    rows = [
        (
            "KL(teacher ‖ student), nats a token",
            _number(figures["kl_untrained"]),
            _number(figures["kl"]),
            "0",
            "How far the student's distribution over the next token is from the teacher's. 0: they are the same.",
        ),
        (
            "top-1 agreement",
            _percent(figures["top1_untrained"]),
            _percent(figures["top1"]),
            "100 %",
            "In how many places both hold the same token for the likeliest.",
        ),
        (
            "perplexity",
            _number(figures["perplexity_untrained"]),
            _number(figures["perplexity"]),
            _number(figures["perplexity_teacher"]),
            "As if the model had to choose among so many tokens at each place of the held-out text. Less is better.",
        ),
    ]
    tokens = f"{figures['held_out_tokens']:,} tokens of records that were not trained on."
    return "<h2>Agreement with the teacher</h2>" + _table(
        ("", "before training", "student", "teacher", "what it means"), rows, tokens
    )


def _cost(report: Mapping[str, Any]) -> str:
    adds, memory, models = report["multiply_adds_a_token"], report["memory_bytes"], report["speed"]["models"]
    names = ("teacher", "student")

    def row(what: str, form: str, values: Sequence[float], meaning: str) -> tuple[str, ...]:
        return what, *(form.format(value) for value in values), _percent(1 - values[1] / values[0]), meaning

    def pace(what: str, key: str, meaning: str) -> tuple[str, ...]:
        one, other = (models[name][key] for name in names)
        return what, f"{one:,.1f}", f"{other:,.1f}", f"{other / one:.2f} ×", meaning

    whole = [sum(adds[name][part] for part in ("head", "rest", "attention")) for name in names]
    layers = [adds[name]["rest"] + adds[name]["attention"] for name in names]
    rows = [
        row("multiply-adds a token", "{:,.0f}", whole, "Of all linear layers and attention, by count."),
        row("of these, in the layers", "{:,.0f}", layers, "The output head stays as it is when layers go."),
        row("weights, float32, bytes", "{:,.0f}", [memory[name]["float32"] for name in names], "Half of it in bfloat16."),
        pace("tokens written a second", "decode", "One answer at a time; the models took turns in the same run."),
        pace("tokens read a second", "prefill", f"A prompt of {report['speed']['prompt_tokens']} tokens at once."),
    ]  # fmt: skip
    if all(models[name]["peak_bytes"] for name in names):
        peaks = [models[name]["peak_bytes"] for name in names]
        rows.append(row("GPU memory at most, bytes", "{:,.0f}", peaks, "Weights, cache and all else, of one answer."))
    note = f"Speeds were measured in {report['speed']['dtype']} on {report['speed']['device']}."
    return "<h2>Cost</h2>" + _table(("", "teacher", "student", "saved, or times", "what it means"), rows, note)


def _arena(report: Mapping[str, Any]) -> str:
    arena = report.get("arena")
    if not arena:
        return ""
    figures = report["figures"]
    elo = arena["teacher_elo"]
    rows = [
        ("Elo", f"{figures['elo_untrained']:.0f}", f"{figures['elo']:.0f}",
         f"Fixed at {elo:.0f} for the teacher by convention: 400 less means one win for ten losses."),
        (f"{LEVEL:.0%} interval", _span(arena["ratings"]["untrained"]), _span(arena["ratings"]["student"]),
         f"Percentiles of {DRAWS:,} draws of the same number of prompts, with replacement."),
        ("win rate", _percent(arena["win_rate_untrained"]), _percent(figures["win_rate"]),
         "A tie is half a win. 50 %: as good as the teacher."),
        ("Elo kept", _percent(figures["elo_untrained"] / elo), _percent(figures["elo_kept"]),
         "Elo as a share of the teacher's; it depends on the convention above."),
    ]  # fmt: skip
    notes = [
        f"{arena['battles']} held-out prompts; each answer greedy, at most {arena['answer_tokens']} tokens.",
        f"Judge: {arena['judge']}.",
        "Where all battles end alike, the interval is a single point, and says nothing.",
        f"Each side has {PRIOR_WINS} wins more, so that one that wins or loses them all has a finite Elo.",
        f"Ties because the answer's place decided: {arena['swayed']}; because the judge named none: {arena['unreadable']}.",
    ]
    return "<h2>Arena</h2>" + _table(
        ("against the teacher", "before training", "student", "what it means"), rows, " ".join(notes)
    )


def _battles(report: Mapping[str, Any]) -> str:
    examples = (report.get("arena") or {}).get("examples")
    if not examples:
        return ""
    words = {1.0: "student", 0.5: "tie", 0.0: "teacher"}
    rows = [(one["question"], one["teacher"], one["student"], words[one["score"]]) for one in examples]
    return _table(("question", "teacher", "student", "better"), rows, "Some of the battles.", texts=3)


def _refusals(report: Mapping[str, Any]) -> str:
    figures = report["figures"]
    if "refused_harmful" not in figures:
        return ""
    rows = [
        (
            f"refused of {kind} prompts",
            _percent(figures[f"refused_{kind}_teacher"]),
            _percent(figures[f"refused_{kind}"]),
            meaning,
        )
        for kind, meaning in (
            ("harmful", "Prompts that ought to be refused. More is better."),
            ("harmless", "Look-alikes that ought to be answered. Less is better."),
        )
    ]
    note = f"{len(report['refusals'])} pairs that were not trained on; an answer counts as a refusal by what it begins with."
    return "<h2>Refusals</h2>" + _table(("", "teacher", "student", "what it means"), rows, note)


def _refused(report: Mapping[str, Any]) -> str:
    rows = [
        (pair[kind]["prompt"], kind, *(_said(pair[kind][name]) for name in ("teacher", "student")))
        for pair in (report.get("refusals") or [])[:6]
        for kind in ("harmful", "harmless")
    ]
    return _table(("prompt", "kind", "teacher", "student"), rows, "Some of the answers.", texts=4) if rows else ""


def _said(answer: Mapping[str, Any]) -> str:
    return f"[{'refused' if answer['refused'] else 'answered'}] {answer['text']}"


def _int8(report: Mapping[str, Any]) -> str:
    """What the quantisation left in int8.json, whatever that is."""
    found = report.get("int8")
    if not found:
        return ""
    lists = {key: value for key, value in found.items() if isinstance(value, list) and value}
    plain = [(key, _cell(value)) for key, value in found.items() if key not in lists]
    tables = [_table(("", "value"), plain)]
    for key, rows in lists.items():
        if all(isinstance(row, Mapping) for row in rows):
            head = list(dict.fromkeys(name for row in rows for name in row))
            tables.append(_table(head, [[_cell(row.get(name)) for name in head] for row in rows[:50]], key))
        else:
            tables.append(_table((key,), [(_cell(row),) for row in rows[:50]]))
    return f"<h2>In 8 bits</h2>{''.join(tables)}"


def _spec(report: Mapping[str, Any]) -> str:
    rows = [
        (f"{group}.{key}", _cell(value))
        for group, values in report["spec"].items()
        for key, value in (values.items() if isinstance(values, Mapping) else (("", values),))
    ]
    return "<h2>The job</h2>" + _table(("spec", "value"), [(name.rstrip("."), value) for name, value in rows])


def _table(head: Iterable[str], rows: Iterable[Sequence[str]], note: str = "", texts: int = 0) -> str:
    """A table whose first column names its rows. Args: texts: so many columns at the left are long texts."""
    heads = "".join(f'<th scope="col">{_text(one)}</th>' for one in head)
    body = "".join(f"<tr>{''.join(_td(place, cell, texts) for place, cell in enumerate(row))}</tr>" for row in rows)
    caption = f"<caption>{_text(note)}</caption>" if note else ""
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _td(place: int, cell: str, texts: int) -> str:
    if place < texts:
        return f'<td class="t">{_text(cell)}</td>'
    if not place:
        return f'<th scope="row">{_text(cell)}</th>'
    return f'<td class="n">{_text(cell)}</td>' if cell[:1].isdigit() or cell[:1] == "-" else f"<td>{_text(cell)}</td>"


def _picture(name: str, pictures: Mapping[str, bytes]) -> str:
    if name not in pictures:
        return ""
    return f'<p><img alt="{escape(_ALT[name])}" src="data:image/png;base64,{base64.b64encode(pictures[name]).decode()}"></p>'


def _text(value: str) -> str:
    cut = value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}…"
    return escape(cut)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return "" if value is None else str(value)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _span(rating: Mapping[str, float]) -> str:
    return f"{rating['low']:.0f} – {rating['high']:.0f}"
