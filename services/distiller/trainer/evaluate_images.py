"""What is measured of an image encoder; see `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from services.distiller.objective.images import ImageBatch
from services.distiller.report.image_agreement import MOST_PICTURES, measure
from services.distiller.students.cost import image_cost
from services.distiller.trainer.batches import chunks
from services.distiller.trainer.image_lesson import pictures
from services.distiller.trainer.job import Job
from services.distiller.trainer.measuring import COMPARED, Measuring, compared

STEPS = len(COMPARED)


def image_report(m: Measuring) -> dict[str, Any]:
    """What is of an image encoder alone in report.json: "figures" and costs."""
    untrained, student = compared(m, partial(_agrees, m.job))
    for one in (untrained, student):
        m.done({name: value for name, value in one["figures"].items() if value is not None})
    return {
        "figures": {
            **student["figures"],
            **{f"{name}_untrained": untrained["figures"][name] for name in student["figures"] if name in _TRAINED},
            **{f"saved_{name}": share for name, share in student["saved"].items()},
        },
        "multiply_adds_a_picture": student["multiply_adds_a_picture"],
        "memory_bytes": student["memory_bytes"],
    }


_TRAINED = {"top1", "kl", "retrieval", "accuracy"}  # what training changes


def _agrees(job: Job, teacher: Any, student: Any) -> dict[str, Any]:
    costs = {"teacher": image_cost(teacher), "student": image_cost(student)}
    return {
        "figures": measure(student, teacher, held_out(job)),
        "saved": costs["student"].saved(costs["teacher"]),
        "multiply_adds_a_picture": {
            name: {"head": one.head, "rest": one.rest, "attention": one.attention, "patches": one.context}
            for name, one in costs.items()
        },
        "memory_bytes": {name: one.sizes() for name, one in costs.items()},
    }


def held_out(job: Job) -> Iterator[ImageBatch]:
    """Some of the held-out pictures, as many as `evaluation.tokens` has patches, and at least two."""
    count = min(max(job.spec.evaluation.tokens // job.patches, 2), MOST_PICTURES)
    offsets = [int(offset) for offset in job.corpus.drawn(job.spec.training.seed)[:count]]
    for some in chunks(offsets, job.spec.training.micro_sequences):
        job.stop.check()
        yield pictures(job, some)
