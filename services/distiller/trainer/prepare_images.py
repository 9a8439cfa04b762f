"""Before the first step of an image encoder; see `prepare`."""

from __future__ import annotations

import logging
from typing import Any

from services.distiller.data.corpus import find, scan
from services.distiller.data.images import NO_LABEL, Pictures
from services.distiller.data.order import Order
from services.distiller.layers import classifier
from services.distiller.objective.images import run
from services.distiller.refused import Refused
from services.distiller.spec import Spec
from services.distiller.students import Made, make
from services.distiller.students.cost import patches
from services.distiller.trainer import models
from services.distiller.trainer.batches import chunks
from services.distiller.trainer.image_lesson import pictures
from services.distiller.trainer.job import Job
from services.distiller.trainer.loading import first_device, load

MEASURED_PICTURES = 64
"""Pictures that layers and widths are measured on."""
log = logging.getLogger(__name__)


def prepare_images(job: Job, where: str, config: Any) -> None:
    """Raises: Refused, LadrError: see `prepare`."""
    data = job.spec.data
    _check(job.spec)
    job.tokenizer = models.image_processor(where)
    source = find(data.path, job.settings.data_root)
    classes = config.num_labels if models.classifies(config) else 0
    job.pictures = Pictures(job.settings.data_root, source.parent, classes)
    job.patches = patches(config)
    job.corpus = scan(source, data.holdout, job.spec.training.seed, job.pictures.checked)
    if not len(job.corpus.held_out):
        raise Refused("NOTHING_HELD_OUT", "there is no picture to measure on: give two records or more")
    pictures(job, [int(job.corpus.train[0])])  # refuses pictures that the processor does not take
    log.info("%d pictures to train on, %d held out", len(job.corpus.train), len(job.corpus.held_out))
    if not job.teacher_runs and all(_label(job, int(one)) == NO_LABEL for one in job.corpus.train):
        raise Refused(
            "ALL_LABELS_MASKED",
            "no picture has a label, and nothing else is learned: give labels, or a kl_weight over 0",
        )
    job.stop.check()
    load(job, where, lambda: _made(job))
    if not classifier(job.student) and not job.teacher_runs:
        raise Refused(
            "NOTHING_TO_LEARN", "an encoder without classes learns from its teacher alone: set kl_weight over 0"
        )


def _label(job: Job, offset: int) -> int:
    found: int = job.corpus.record(offset, job.pictures.read).label
    return found


def _check(spec: Spec) -> None:
    """What is for language models only."""
    if not spec.data.path:
        raise Refused("DATA_PATH", "an image encoder needs pictures: set data.path to JSON Lines with an image in each")
    wrong = {
        "data.answers_from": spec.data.answers_from,
        "objective.on_policy": spec.objective.on_policy,
        "objective.teacher_top_k": spec.objective.teacher_top_k,
        "objective.refusal_weight": spec.objective.refusal_weight,
        "int8.kind": spec.int8.kind != "none",
    }
    if found := [name for name, value in wrong.items() if value]:
        raise Refused("UNSUPPORTED", f"{', '.join(found)}: for language models only; leave it out for an image encoder")


def _made(job: Job) -> tuple[Made, int]:
    order = Order(job.corpus.train, job.spec.training.seed)
    measured = chunks([next(order) for _ in range(MEASURED_PICTURES)], job.spec.training.micro_sequences)
    made = make(
        job.teacher,
        job.spec.student,
        (pictures(job, some).to(first_device(job)) for some in measured),
        lambda name: models.weights(models.find(name or job.spec.teacher, job.settings)).to(first_device(job)),
        run,
    )
    return made, 0
