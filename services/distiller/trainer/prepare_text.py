"""Before the first step of a language model; see `prepare`."""

from __future__ import annotations

import logging
from typing import Any

from services.distiller.data.corpus import find, scan
from services.distiller.data.encode import Encoder
from services.distiller.data.stream import Reader, Stream, once
from services.distiller.objective import checks
from services.distiller.refused import Refused
from services.distiller.students import Made, make
from services.distiller.students.cost import cost
from services.distiller.trainer import models
from services.distiller.trainer.batches import batch, chunks
from services.distiller.trainer.job import Job
from services.distiller.trainer.loading import first_device, load

MEASURED_TOKENS = 8192
"""Tokens that layers and widths are measured on."""
log = logging.getLogger(__name__)


def prepare_text(job: Job, where: str, config: Any) -> None:
    """Raises: Refused, LadrError: see `prepare`."""
    data = job.spec.data
    context = getattr(config, "max_position_embeddings", None)
    if context and data.sequence_tokens > context:
        raise Refused("CONTEXT_TOO_SHORT", f"the teacher takes {context} tokens: set data.sequence_tokens to no more")
    job.tokenizer = models.tokenizer(where)
    job.ends = models.ends(where, job.tokenizer)
    job.padding = next(one for one in (job.tokenizer.pad_token_id, *job.ends, 0) if one is not None)
    source = job.place.answered if data.answers_from else find(data.path, job.settings.data_root)
    job.corpus = scan(source, data.holdout, job.spec.training.seed)
    job.reader = Reader(job.corpus, Encoder(job.tokenizer, job.ends, data.score_prompts), data.sequence_tokens)
    next(stream(job))  # refuses data with nothing to score
    if next(once(job.reader, job.corpus.held_out, job.padding), None) is None:
        raise Refused(
            "NOTHING_HELD_OUT",
            "no record to measure on has anything to score: give more records, or a greater data.holdout",
        )
    objective = job.spec.objective
    if objective.teacher_top_k and (objective.attention_weight or objective.hidden_weight):
        log.warning(
            "objective.teacher_top_k saves nothing: attention_weight and hidden_weight over 0 need the teacher at each step"
        )
    log.info("%d records to train on, %d held out", len(job.corpus.train), len(job.corpus.held_out))
    job.stop.check()
    load(job, where, lambda: _made(job))


def stream(job: Job) -> Stream:
    """What is trained on, from the beginning."""
    return Stream(job.reader, job.spec.training.seed, job.padding)


def _made(job: Job) -> tuple[Made, int]:
    source, training = stream(job), job.spec.training
    cost(job.teacher, job.spec.data.sequence_tokens)  # refuses what the report could not count
    count = -(-MEASURED_TOKENS // job.spec.data.sequence_tokens)
    measured = chunks([next(source) for _ in range(count)], training.micro_sequences)
    made = make(
        job.teacher,
        job.spec.student,
        (batch(some, first_device(job)) for some in measured),
        lambda name: _given(job, name),
    )
    vocabulary = checks.vocabulary(made.model, job.teacher, len(job.tokenizer))
    if sentence := checks.sliced(made.model, job.teacher):
        log.info(sentence)
    return made, vocabulary


def _given(job: Job, source: str) -> Any:
    """A student that is there already; by no name the teacher."""
    where = models.find(source or job.spec.teacher, job.settings)
    checks.tokenizers(models.tokenizer(where), job.tokenizer)
    return models.weights(where).to(first_device(job))
