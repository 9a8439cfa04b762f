"""Teacher and student of a job, and the type and device that they compute in."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from services.distiller.refused import Refused
from services.distiller.students import Made
from services.distiller.trainer import models
from services.distiller.trainer.directory import new_directory
from services.distiller.trainer.fingerprint import fingerprint
from services.distiller.trainer.initial import read_notes, write_notes
from services.distiller.trainer.job import Job
from services.distiller.trainer.shelf import Shelf

log = logging.getLogger(__name__)


def find_teacher(job: Job) -> str:
    """Where the teacher is; one process converts it, if that is needed."""
    if job.ranks.first:
        models.find(job.spec.teacher, job.settings)
    job.ranks.wait()
    return models.find(job.spec.teacher, job.settings)


def load(job: Job, where: str, make: Callable[[], tuple[Made, int]]) -> None:
    """Teacher, if anything needs it yet, and student: the one that an earlier start made, or a new one.

    Args: make: makes the student, and says how many logits are compared.
    Raises: Refused: DATA_CHANGED, TEACHER_CHANGED: what an earlier start made and stored is of other records, or of another.
        JOB_DAMAGED: it is not as it was written.
    """
    initial = job.place.initial
    top_k = job.spec.objective.teacher_top_k
    stored = not top_k or Shelf.complete(job.place.taught)
    if job.teacher_runs or not stored or not initial.is_dir():
        job.teacher = models.weights(where).requires_grad_(False).eval().to(first_device(job))
        job.stop.check()
    if job.ranks.first and not initial.is_dir():
        made, vocabulary = make()
        with new_directory(initial) as new:
            made.model.float().save_pretrained(new)
            made_of = {
                "layer_map": made.layer_map,
                "heads": made.heads,
                "vocabulary": vocabulary,
                "description": made.description,
                "data": job.corpus.digest,
                "teacher": fingerprint(where),
            }
            write_notes(new, made_of)
    job.ranks.wait()
    notes = read_notes(initial)
    if notes["data"] != job.corpus.digest:
        raise Refused(
            "DATA_CHANGED",
            "the data is not what it was when the job began: put the file back, or begin a new job with the new one",
        )
    if notes["teacher"] != fingerprint(where):
        raise Refused(
            "TEACHER_CHANGED", "the teacher is not what it was when the job began: put it back, or begin a new job"
        )
    job.layer_map = tuple((one, other) for one, other in notes["layer_map"])
    job.heads = notes["heads"] and tuple(notes["heads"])
    job.vocabulary = notes["vocabulary"]
    job.student = models.weights(str(initial), torch.float32).train().to(first_device(job))
    if not job.teacher_runs and stored:
        job.teacher = None
    if job.teacher is not None:
        job.teacher.to(dtype(job))
    log.info("student: %s", notes["description"])


def dtype(job: Job) -> torch.dtype:
    """What is computed in."""
    return torch.bfloat16 if job.spec.training.dtype == "bfloat16" else torch.float32


def first_device(job: Job) -> str:
    """Where models are loaded to: a model of several processes may be too large for the device of one."""
    return job.device if job.ranks.count == 1 else "cpu"
