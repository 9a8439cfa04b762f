"""How fast teacher and student are, in the type that the job computes in."""

from __future__ import annotations

from functools import partial
from typing import Any

from services.distiller.report import speed
from services.distiller.trainer.loading import dtype
from services.distiller.trainer.measuring import Measuring

STEPS = 1 + speed.ROUNDS


def figures(found: dict[str, Any]) -> dict[str, float]:
    """The main ones."""
    student, teacher = (found["models"][name] for name in ("student", "teacher"))
    ratio = speed.ratio(student["rounds"], teacher["rounds"])
    return {
        "speed_ratio": ratio.median,
        "speed_ratio_low": ratio.low,
        "speed_ratio_high": ratio.high,
        "tokens_per_second": student["decode"],
        "tokens_per_second_teacher": teacher["decode"],
    }


def speeds(m: Measuring) -> dict[str, Any]:
    """The speeds of both, and how they were measured; each round is a step."""
    job = m.job
    fresh = bool(m.notes.missing("speed"))

    def race(teacher: Any, student: Any) -> dict[str, Any]:
        found = speed.race({"teacher": teacher, "student": student}, job.vocabulary, m.done)
        return {
            "models": {name: one.row() for name, one in found.items()},
            "prompt_tokens": speed.PROMPT,
            "decoded_tokens": speed.DECODED,
            "rounds": speed.ROUNDS,
            "dtype": job.spec.training.dtype,
            "device": job.device,
        }

    def both() -> dict[str, Any]:
        kind = dtype(job)
        return m.using("teacher", lambda teacher: m.using("student", partial(race, teacher), kind), kind)

    found = m.notes.once("speed", both)
    for _ in range(0 if fresh else STEPS):
        m.done()
    return found
