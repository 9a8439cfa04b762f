"""How far the student, before its training and after it, agrees with its teacher on held-out text; and what both cost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from services.distiller.data.stream import once
from services.distiller.objective.batch import Batch
from services.distiller.refused import Refused
from services.distiller.report.agreement import measure
from services.distiller.students.cost import cost
from services.distiller.trainer.batches import batch
from services.distiller.trainer.job import Job
from services.distiller.trainer.measuring import COMPARED, Measuring, compared

log = logging.getLogger(__name__)


def agreement(m: Measuring) -> list[dict[str, Any]]:
    """KL, top-1 and perplexity on held-out text, before the training and after it; with it what the models cost."""
    found = compared(m, partial(_agrees, m.job))
    for name, one in zip(COMPARED, found, strict=True):
        if None in (one["kl"], one["perplexity"]):
            raise Refused("NOT_FINITE", f"the KL of the {name} model is not a finite number: its weights are broken")
        log.info("%s: KL %.4f, top-1 agreement %.3f", name, one["kl"], one["top1"])
        m.done({"kl": one["kl"], "top1": one["top1"]})
    return found


def _agrees(job: Job, teacher: Any, student: Any) -> dict[str, Any]:
    found = measure(student, teacher, _held_out(job), job.vocabulary, job.spec.evaluation.tokens)
    context = job.spec.data.sequence_tokens
    costs = {"teacher": cost(teacher, context), "student": cost(student, context)}
    names = ("kl", "top1", "perplexity", "teacher_perplexity", "tokens")
    return {
        **{name: getattr(found, name) for name in names},
        "saved": costs["student"].saved(costs["teacher"]),
        "multiply_adds_a_token": {
            name: {"head": one.head, "rest": one.rest, "attention": one.attention, "context": one.context}
            for name, one in costs.items()
        },
        "memory_bytes": {name: one.sizes() for name, one in costs.items()},
    }


def _held_out(job: Job) -> Iterator[Batch]:
    for packed in once(job.reader, job.corpus.drawn(job.spec.training.seed), job.padding):
        job.stop.check()
        yield batch([packed], job.device)
