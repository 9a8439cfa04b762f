"""Before the first step: data and models are read and checked against each other, and the student is made."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import torch

from services.distiller.data.corpus import find, scan
from services.distiller.data.encode import Encoder
from services.distiller.data.stream import Reader, Stream, once
from services.distiller.objective import checks
from services.distiller.refused import Refused
from services.distiller.students import make
from services.distiller.trainer import models
from services.distiller.trainer.batches import batch, chunks
from services.distiller.trainer.directory import new_directory
from services.distiller.trainer.job import Job
from services.distiller.trainer.shelf import Shelf

MEASURED_TOKENS = 8192
"""Tokens that layers and widths are measured on."""
log = logging.getLogger(__name__)


def prepare(job: Job) -> None:
    """Fill the job in; what costs least is checked first.

    Raises: Refused, LadrError: something does not fit, with what to do.
    """
    training, data = job.spec.training, job.spec.data
    torch.manual_seed(training.seed)
    random.seed(training.seed)
    where = _found(job)
    config = models.config(where)
    context = getattr(config, "max_position_embeddings", None)
    if context and data.sequence_tokens > context:
        raise Refused("CONTEXT_TOO_SHORT", f"the teacher takes {context} tokens: set data.sequence_tokens to no more")
    job.tokenizer = models.tokenizer(where)
    job.ends = models.ends(where, job.tokenizer)
    job.padding = next(one for one in (job.tokenizer.pad_token_id, *job.ends, 0) if one is not None)
    source = job.place.answered if data.answers_from else find(data.path, job.settings.data_root)
    corpus = scan(source, data.holdout, training.seed)
    job.reader = Reader(corpus, Encoder(job.tokenizer, job.ends, data.score_prompts), data.sequence_tokens)
    next(stream(job))  # refuses data with nothing to score
    if next(once(job.reader, corpus.held_out, job.padding), None) is None:
        raise Refused(
            "NOTHING_HELD_OUT",
            "no record to measure on has anything to score: give more records, or a greater data.holdout",
        )
    log.info("%d records to train on, %d held out", len(corpus.train), len(corpus.held_out))
    job.stop.check()
    _models(job, where)


def stream(job: Job) -> Stream:
    """What is trained on, from the beginning."""
    return Stream(job.reader, job.spec.training.seed, job.padding)


def _found(job: Job) -> str:
    """Where the teacher is; one process converts it, if that is needed."""
    if job.ranks.first:
        models.find(job.spec.teacher, job.settings)
    job.ranks.wait()
    return models.find(job.spec.teacher, job.settings)


def _models(job: Job, where: str) -> None:
    """Teacher, if anything needs it yet, and student: the one that an earlier start made, or a new one."""
    initial = job.place.initial
    top_k = job.spec.objective.teacher_top_k
    stored = not top_k or Shelf.complete(job.place.taught)
    if job.teacher_runs or not stored or not initial.is_dir():
        job.teacher = models.weights(where).requires_grad_(False).eval().to(_first_device(job))
        job.stop.check()
    if job.ranks.first and not initial.is_dir():
        _make(job)
    job.ranks.wait()
    notes = json.loads((initial / "student.json").read_bytes())
    job.layer_map = tuple((one, other) for one, other in notes["layer_map"])
    job.vocabulary = notes["vocabulary"]
    job.student = models.weights(str(initial), torch.float32).train().to(_first_device(job))
    if not job.teacher_runs and stored:
        job.teacher = None
    if job.teacher is not None:
        job.teacher.to(dtype(job))
    log.info("student: %s", notes["description"])


def dtype(job: Job) -> torch.dtype:
    """What is computed in."""
    return torch.bfloat16 if job.spec.training.dtype == "bfloat16" else torch.float32


def _make(job: Job) -> None:
    """Write the student as it is before its first step, so that it is made once."""
    source, training = stream(job), job.spec.training
    count = -(-MEASURED_TOKENS // job.spec.data.sequence_tokens)
    measured = chunks([next(source) for _ in range(count)], training.micro_sequences)
    made = make(
        job.teacher,
        job.spec.student,
        (batch(some, _first_device(job)) for some in measured),
        lambda name: _given(job, name),
    )
    vocabulary = checks.vocabulary(made.model, job.teacher, len(job.tokenizer))
    if sentence := checks.sliced(made.model, job.teacher):
        log.info(sentence)
    with new_directory(job.place.initial) as new:
        made.model.float().save_pretrained(new)
        notes = {"layer_map": made.layer_map, "vocabulary": vocabulary, "description": made.description}
        (new / "student.json").write_text(json.dumps(notes))


def _given(job: Job, source: str) -> Any:
    """A student that is there already."""
    where = models.find(source, job.settings)
    checks.tokenizers(models.tokenizer(where), job.tokenizer)
    return models.weights(where).to(_first_device(job))


def _first_device(job: Job) -> str:
    """Where models are loaded to: a model of several processes may be too large for the device of one."""
    return job.device if job.ranks.count == 1 else "cpu"
