"""`report.html` of an image encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.distiller.report.few import only
from services.distiller.report.html import frame, headline, job, number, percent, picture, table, trained
from services.distiller.report.image_agreement import NEAREST

_MEANINGS = {
    "top1": ("same class", "In how many pictures both find the same class the likeliest."),
    "kl": (
        "KL of the classes, nats a picture",
        "How far the student's distribution over the classes is from the teacher's.",
    ),
    "retrieval": (
        "neighbours found",
        f"Share of the teacher's {NEAREST} nearest pictures that the student finds nearest too.",
    ),
    "accuracy": ("right class", "In how many pictures the likeliest class is the label."),
}


def page(report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """The page. Args: report: what report.json has. pictures: PNGs by name."""
    figures = report["figures"]
    measured = only(int(figures["pictures"]), what="pictures")

    def share(name: str) -> str:
        before = f" (before training: {percent(figures[f'{name}_untrained'])})" if trained(report) else ""
        return f"{percent(figures[name])}{before}"

    said = [
        f"The student needs {percent(figures['saved_total'])} less compute a picture than its teacher.",
        f"It finds of the teacher's nearest neighbours {share('retrieval')}{measured}.",
    ]
    if "top1" in figures:
        said.append(f"It names the teacher's class of {share('top1')} of the pictures{measured}.")
    return frame(
        [
            headline(report, said),
            _agreement(figures),
            picture("image_agreement", pictures),
            picture("losses", pictures),
            _cost(report),
            picture("image_cost", pictures),
            job(report["spec"]),
        ]
    )


def _agreement(figures: Mapping[str, Any]) -> str:
    rows = []
    for name, (what, meaning) in _MEANINGS.items():
        if name in figures:
            form = number if name == "kl" else percent
            both = [form(figures[key]) for key in (f"{name}_untrained", name)]
            rows.append((what, *both, _teachers(name, figures), meaning))
    note = f"{figures['pictures']:,.0f} pictures that were not trained on."
    return "<h2>Agreement with the teacher</h2>" + table(
        ("", "before training", "student", "teacher", "what it means"), rows, note
    )


def _teachers(name: str, figures: Mapping[str, Any]) -> str:
    return percent(figures["accuracy_teacher"]) if name == "accuracy" else "0" if name == "kl" else "100 %"


def _cost(report: Mapping[str, Any]) -> str:
    adds, memory = report["multiply_adds_a_picture"], report["memory_bytes"]
    names = ("teacher", "student")
    both = {
        "multiply-adds a picture": [sum(adds[name][part] for part in ("head", "rest", "attention")) for name in names],
        "weights, float32, bytes": [memory[name]["float32"] for name in names],
    }
    rows = [
        (what, *(f"{value:,.0f}" for value in values), percent(1 - values[1] / values[0]))
        for what, values in both.items()
    ]
    return "<h2>Cost</h2>" + table(("", "teacher", "student", "saved"), rows, "By count.")
