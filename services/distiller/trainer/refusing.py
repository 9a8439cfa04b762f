"""Which prompts both models refuse: of those that ought to be, and of their harmless look-alikes."""

from __future__ import annotations

from typing import Any

from services.distiller.report.refusals import refuses
from services.distiller.trainer.answering import Asked, Said
from services.distiller.trainer.arena import TEXT

KINDS = ("harmful", "harmless")


def refusals(questions: Asked, answers: Said) -> list[dict[str, Any]]:
    """For each pair what both models say to its two prompts, and whether that refuses."""
    return [
        {
            kind: {
                "prompt": getattr(pair, kind),
                **{name: _row(texts[2 * place + at].text) for name, texts in answers.prompts.items()},
            }
            for at, kind in enumerate(KINDS)
        }
        for place, pair in enumerate(questions.pairs)
    ]


def rates(refused: list[dict[str, Any]]) -> dict[str, float]:
    """Shares that are refused, as figures; none of no pairs."""
    return {
        f"refused_{kind}{end}": sum(pair[kind][name]["refused"] for pair in refused) / len(refused)
        for kind in KINDS
        for name, end in (("student", ""), ("teacher", "_teacher"))
        if refused
    }


def _row(text: str) -> dict[str, Any]:
    return {"text": text[:TEXT], "refused": refuses(text)}
