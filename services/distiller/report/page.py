"""`report.html`: the report for a reader, one page with its pictures in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.distiller.report import int8
from services.distiller.report.elo import DRAWS, LEVEL, PRIOR_WINS
from services.distiller.report.few import BATTLES, only
from services.distiller.report.html import frame, headline, job, number, percent, picture, table, times, trained


def page(report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """The page. Args: report: what report.json has. pictures: PNGs by name."""
    parts = [
        _summary(report),
        _agreement(report),
        picture("agreement", pictures),
        picture("losses", pictures),
        _cost(report),
        picture("cost", pictures),
        _arena(report),
        picture("elo", pictures) + _battles(report),
        _refusals(report),
        picture("refusals", pictures) + _refused(report),
        int8.section(report),
        job(report["spec"]),
    ]
    return frame(parts)


def _summary(report: Mapping[str, Any]) -> str:
    figures = report["figures"]
    ratio, low, high = (times(figures[f"speed_ratio{end}"]) for end in ("", "_low", "_high"))
    said = [
        f"The student needs {percent(figures['saved_total'])} less compute a token than its teacher, and writes {ratio} times"
        f" as many tokens a second on this machine (between {low} and {high} in {report['speed']['rounds']} rounds).",
        _learned(report),
    ]
    if "elo" in figures:
        said.append(_fought(report))
    return headline(report, [*said, *int8.finding(report)])


def _learned(report: Mapping[str, Any]) -> str:
    figures = report["figures"]
    measured = only(figures["held_out_records"], figures["held_out_tokens"])
    if not trained(report):
        return (
            f"It was not trained: its KL to the teacher is {number(figures['kl'])} nats a token, and it holds the same token"
            f" for the likeliest in {percent(figures['top1'])} of all places{measured}."
        )
    return (
        f"Training moved its KL to the teacher from {number(figures['kl_untrained'])} to {number(figures['kl'])} nats a"
        f" token; it holds the same token for the likeliest in {percent(figures['top1'])} of all places"
        f" (before: {percent(figures['top1_untrained'])}){measured}."
    )


def _fought(report: Mapping[str, Any]) -> str:
    figures, elo = report["figures"], report["arena"]["teacher_elo"]
    battles = f"{figures['battles']:.0f} battles"
    before = f"; before training it was {figures['elo_untrained']:.0f}" if trained(report) else ""
    if figures["battles"] < BATTLES:
        span, doubt = "", ": too few battles to tell"
    else:
        span, doubt = f" (between {figures['elo_low']:.0f} and {figures['elo_high']:.0f})", ""
    return f"Its Elo is {figures['elo']:.0f}{span} against the teacher's {elo:.0f}, of {battles}{before}{doubt}."


def _agreement(report: Mapping[str, Any]) -> str:
    figures = report["figures"]
    rows = [
        (
            "KL(teacher ‖ student), nats a token",
            number(figures["kl_untrained"]),
            number(figures["kl"]),
            "0",
            "How far the student's distribution over the next token is from the teacher's. 0: they are the same.",
        ),
        (
            "top-1 agreement",
            percent(figures["top1_untrained"]),
            percent(figures["top1"]),
            "100 %",
            "In how many places both hold the same token for the likeliest.",
        ),
        (
            "perplexity",
            number(figures["perplexity_untrained"]),
            number(figures["perplexity"]),
            number(figures["perplexity_teacher"]),
            "As if the model had to choose among so many tokens at each place of the held-out text. Less is better.",
        ),
    ]
    tokens = (
        f"{figures['held_out_tokens']:,} tokens of {figures['held_out_records']:,} records that were not trained on."
    )
    return "<h2>Agreement with the teacher</h2>" + table(
        ("", "before training", "student", "teacher", "what it means"), rows, tokens
    )


def _cost(report: Mapping[str, Any]) -> str:
    adds, memory, models = report["multiply_adds_a_token"], report["memory_bytes"], report["speed"]["models"]
    names = ("teacher", "student")

    def row(what: str, form: str, values: Sequence[float], meaning: str) -> tuple[str, ...]:
        return what, *(form.format(value) for value in values), percent(1 - values[1] / values[0]), meaning

    def pace(what: str, key: str, ratio: float | None, meaning: str) -> tuple[str, ...]:
        one, other = (models[name][key] for name in names)
        return what, f"{one:,.1f}", f"{other:,.1f}", f"{times(ratio or other / one)} ×", meaning

    whole = [sum(adds[name][part] for part in ("head", "rest", "attention")) for name in names]
    layers = [adds[name]["rest"] + adds[name]["attention"] for name in names]
    rows = [
        row("multiply-adds a token", "{:,.0f}", whole, "Of all linear layers and attention, by count."),
        row("of these, in the layers", "{:,.0f}", layers, "The output head stays as it is when layers go."),
        row("weights, float32, bytes", "{:,.0f}", [memory[name]["float32"] for name in names], "Half of it in bfloat16."),
        pace("tokens written a second", "decode", report["figures"]["speed_ratio"],
             "One answer at a time; the models took turns in the same run. Medians of the rounds, also of their ratios."),
        pace("tokens read a second", "prefill", None, f"A prompt of {report['speed']['prompt_tokens']} tokens at once."),
    ]  # fmt: skip
    if all(models[name]["peak_bytes"] for name in names):
        peaks = [models[name]["peak_bytes"] for name in names]
        rows.append(row("GPU memory at most, bytes", "{:,.0f}", peaks, "Weights, cache and all else, of one answer."))
    note = f"Speeds were measured in {report['speed']['dtype']} on {report['speed']['device']}."
    return "<h2>Cost</h2>" + table(("", "teacher", "student", "saved, or times", "what it means"), rows, note)


def _arena(report: Mapping[str, Any]) -> str:
    arena = report.get("arena")
    if not arena:
        return ""
    figures = report["figures"]
    elo = arena["teacher_elo"]
    few = figures["battles"] < BATTLES
    spans = ["too few battles" if few else _span(arena["ratings"][name]) for name in ("untrained", "student")]
    rows = [
        ("Elo", f"{figures['elo_untrained']:.0f}", f"{figures['elo']:.0f}",
         f"Fixed at {elo:.0f} for the teacher by convention: 400 less means one win for ten losses."),
        (f"{LEVEL:.0%} interval", *spans,
         f"Percentiles of {DRAWS:,} draws of the same number of prompts, with replacement."),
        ("win rate", percent(arena["win_rate_untrained"]), percent(figures["win_rate"]),
         "A tie is half a win. 50 %: as good as the teacher."),
        ("Elo kept", percent(figures["elo_untrained"] / elo), percent(figures["elo_kept"]),
         "Elo as a share of the teacher's; it depends on the convention above."),
    ]  # fmt: skip
    notes = [
        f"{arena['battles']} held-out prompts; each answer greedy, at most {arena['answer_tokens']} tokens.",
        f"Judge: {arena['judge']}.",
        "Where all battles end alike, the interval is a single point, and says nothing.",
        f"Each side has {PRIOR_WINS} wins more, so that one that wins or loses them all has a finite Elo.",
        f"Ties because the answer's place decided: {arena['swayed']}; because the judge named none: {arena['unreadable']}.",
    ]
    return "<h2>Arena</h2>" + table(
        ("against the teacher", "before training", "student", "what it means"), rows, " ".join(notes)
    )


def _battles(report: Mapping[str, Any]) -> str:
    examples = (report.get("arena") or {}).get("examples")
    if not examples:
        return ""
    words = {1.0: "student", 0.5: "tie", 0.0: "teacher"}
    rows = [(one["question"], one["teacher"], one["student"], words[one["score"]]) for one in examples]
    return table(("question", "teacher", "student", "better"), rows, "Some of the battles.", texts=3)


def _refusals(report: Mapping[str, Any]) -> str:
    figures = report["figures"]
    if "refused_harmful" not in figures:
        return ""
    rows = [
        (
            f"refused of {kind} prompts",
            percent(figures[f"refused_{kind}_teacher"]),
            percent(figures[f"refused_{kind}"]),
            meaning,
        )
        for kind, meaning in (
            ("harmful", "Prompts that ought to be refused. More is better."),
            ("harmless", "Look-alikes that ought to be answered. Less is better."),
        )
    ]
    note = f"{len(report['refusals'])} pairs that were not trained on; an answer counts as a refusal by what it begins with."
    return "<h2>Refusals</h2>" + table(("", "teacher", "student", "what it means"), rows, note)


def _refused(report: Mapping[str, Any]) -> str:
    rows = [
        (pair[kind]["prompt"], kind, *(_said(pair[kind][name]) for name in ("teacher", "student")))
        for pair in (report.get("refusals") or [])[:6]
        for kind in ("harmful", "harmless")
    ]
    return table(("prompt", "kind", "teacher", "student"), rows, "Some of the answers.", texts=4) if rows else ""


def _said(answer: Mapping[str, Any]) -> str:
    return f"[{'refused' if answer['refused'] else 'answered'}] {answer['text']}"


def _span(rating: Mapping[str, float]) -> str:
    return f"{rating['low']:.0f} – {rating['high']:.0f}"
