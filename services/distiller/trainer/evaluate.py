"""The report: the student beside its teacher, and beside itself before its first step.

Each part is measured once and kept (see `report.notes`), so that an evaluation that is stopped goes on with what is left.
There are never more than two models in memory. `report.json` is written last of all.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.place import Place, write_whole
from services.distiller.report.notes import Notes, dumped
from services.distiller.trainer import racing
from services.distiller.trainer.agreeing import agreement
from services.distiller.trainer.answering import Asked, asked, cut, said
from services.distiller.trainer.arena import arena, figures
from services.distiller.trainer.card import complete
from services.distiller.trainer.evaluate_images import STEPS as IMAGE_STEPS
from services.distiller.trainer.evaluate_images import image_report
from services.distiller.trainer.job import Job
from services.distiller.trainer.measuring import COMPARED, Measuring, let_go
from services.distiller.trainer.quantize import with_int8
from services.distiller.trainer.racing import STEPS, speeds
from services.distiller.trainer.refusing import rates, refusals

MOST_POINTS = 2000
"""Of the curve in the report."""


def evaluate(job: Job) -> None:
    """Write `report/`; the first process does it alone, on plain models read anew, and the others are done.

    Raises: Refused: NOT_FINITE, JUDGE_UNAVAILABLE. Stopped.
    """
    job.teacher = job.student = None
    let_go(job.device)
    if not job.ranks.first:
        return
    notes = Notes(job.place.report)
    if not notes.missing("report"):
        job.meter.begin(DistillPhase.DISTILL_PHASE_EVALUATE, 1, 1)
        return
    m = Measuring(job, notes)
    if job.of_images:
        job.meter.begin(DistillPhase.DISTILL_PHASE_EVALUATE, IMAGE_STEPS + 1)
        _write(job, {**image_report(m), **_common(job)})
        job.meter.step(IMAGE_STEPS + 1, 0, {}, {})
        return
    questions = asked(m)
    steps = len(COMPARED) + questions.steps + len(cut(questions.battles)) + STEPS + 1
    job.meter.begin(DistillPhase.DISTILL_PHASE_EVALUATE, steps)
    _write(job, with_int8(_report(m, questions), job.place))
    job.meter.step(steps, 0, {}, {})


def _report(m: Measuring, questions: Asked) -> dict[str, Any]:
    job = m.job
    untrained, student = agreement(m)
    answers = said(m, questions)
    fought = arena(m, questions, answers)
    refused = refusals(questions, answers)
    raced = speeds(m)
    return {
        "figures": {
            **{name: student[name] for name in ("kl", "top1", "perplexity")},
            **{f"{name}_untrained": untrained[name] for name in ("kl", "top1", "perplexity")},
            "perplexity_teacher": student["teacher_perplexity"],
            "held_out_tokens": student["tokens"],
            "held_out_records": len(job.corpus.held_out),
            **{f"saved_{name}": share for name, share in student["saved"].items()},
            **racing.figures(raced),
            **figures(fought),
            **rates(refused),
        },
        "multiply_adds_a_token": student["multiply_adds_a_token"],
        "memory_bytes": student["memory_bytes"],
        "speed": raced,
        "arena": fought or None,
        "refusals": refused,
        **_common(job),
    }


def _common(job: Job) -> dict[str, Any]:
    return {
        "teacher": job.spec.teacher or "the 135M chat model",
        "student": json.loads((job.place.initial / "student.json").read_bytes())["description"],
        "curve": curve(job.place),
        "spec": job.spec.model_dump(mode="json", exclude_none=True),
    }


def _write(job: Job, report: dict[str, Any]) -> None:
    """Pictures, page and the figures on the card first: once report.json is there, all is."""
    from services.distiller.report import image_page, image_plots, page, plots  # matplotlib takes a second

    text = dumped(report)
    whole = json.loads(text)
    pages, drawings = (image_page, image_plots) if job.of_images else (page, plots)
    drawn = drawings.pictures(whole)
    for name, picture in drawn.items():
        write_whole(job.place.report / f"{name}.png", picture)
    write_whole(job.place.report / "report.html", pages.page(whole, drawn).encode())
    complete(job.place.student, job, whole["figures"])
    write_whole(job.place.report / "report.json", text)


def curve(place: Place) -> list[dict[str, Any]]:
    """The training's progress, evenly thinned; of a step that came again after a restart, the last word."""
    steps = {
        progress.step: {"step": progress.step, "tokens": progress.tokens, "losses": dict(progress.losses)}
        for progress, _ in place.read_progress()
        if progress.phase == DistillPhase.DISTILL_PHASE_TRAIN and progress.losses
    }
    points = [steps[step] for step in sorted(steps)]
    every = max(1, math.ceil(len(points) / MOST_POINTS))
    return points[::-1][::every][::-1]
