"""The report: the student beside its teacher, and beside itself before its first step, on the held-out records."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator
from typing import Any

from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.data.stream import once
from services.distiller.objective.batch import Batch
from services.distiller.place import write_whole
from services.distiller.report.agreement import Agreement, measure
from services.distiller.students.cost import cost
from services.distiller.trainer import models
from services.distiller.trainer.batches import batch
from services.distiller.trainer.job import Job
from services.distiller.trainer.quantize import with_int8

log = logging.getLogger(__name__)


def evaluate(job: Job) -> None:
    """Write `report/report.json`; the first process does it alone, on plain models read anew."""
    file = job.place.report / "report.json"
    job.teacher = job.student = None
    gc.collect()
    job.meter.begin(DistillPhase.DISTILL_PHASE_EVALUATE, 2)
    if job.ranks.first and not file.exists():
        write_whole(file, json.dumps(with_int8(_report(job), job.place), indent=1).encode())
    job.ranks.wait()
    job.meter.step(2, 0, {}, {})


def _report(job: Job) -> dict[str, Any]:
    teacher = _model(job, models.find(job.spec.teacher, job.settings))
    found: dict[str, Agreement] = {}
    for step, name in enumerate(("untrained", "student"), start=1):
        job.stop.check()
        student = _model(job, str(job.place.initial if name == "untrained" else job.place.student))
        found[name] = measure(student, teacher, _held_out(job), job.vocabulary, job.spec.evaluation.tokens)
        log.info("%s: KL %.4f, top-1 agreement %.3f", name, found[name].kl, found[name].top1)
        job.meter.step(step, found[name].tokens, {}, {"kl": found[name].kl, "top1": found[name].top1})
    context = job.spec.data.sequence_tokens
    costs = {"teacher": cost(teacher, context), "student": cost(student, context)}
    return {
        "figures": {
            "kl": found["student"].kl,
            "top1": found["student"].top1,
            "perplexity": found["student"].perplexity,
            "kl_untrained": found["untrained"].kl,
            "top1_untrained": found["untrained"].top1,
            "perplexity_untrained": found["untrained"].perplexity,
            "perplexity_teacher": found["student"].teacher_perplexity,
            "held_out_tokens": found["student"].tokens,
            **{f"saved_{name}": share for name, share in costs["student"].saved(costs["teacher"]).items()},
        },
        "multiply_adds_a_token": {
            name: {"head": one.head, "rest": one.rest, "attention": one.attention, "context": one.context}
            for name, one in costs.items()
        },
        "memory_bytes": {
            name: {kind: one.memory_bytes(kind) for kind in ("float32", "bfloat16")} for name, one in costs.items()
        },
        "student": json.loads((job.place.initial / "student.json").read_bytes())["description"],
        "curve": [
            {"step": progress.step, "tokens": progress.tokens, "losses": dict(progress.losses)}
            for progress in _curve(job)
        ],
        "spec": job.spec.model_dump(mode="json", exclude_none=True),
    }


def _model(job: Job, where: str) -> Any:
    return models.weights(where, "float32").eval().requires_grad_(False).to(job.device)


def _held_out(job: Job) -> Iterator[Batch]:
    for packed in once(job.reader, job.reader.corpus.held_out, job.padding):
        yield batch([packed], job.device)


def _curve(job: Job) -> list[Any]:
    """The training's progress; of a step that came again after a restart, the last word."""
    steps = {
        progress.step: progress
        for progress, _ in job.place.read_progress()
        if progress.phase == DistillPhase.DISTILL_PHASE_TRAIN and progress.losses
    }
    return [steps[step] for step in sorted(steps)]
