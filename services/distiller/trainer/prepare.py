"""Before the first step: data and models are read and checked against each other, and the student is made."""

from __future__ import annotations

import random

import torch

from services.distiller.trainer import models
from services.distiller.trainer.job import Job
from services.distiller.trainer.loading import find_teacher
from services.distiller.trainer.prepare_images import prepare_images
from services.distiller.trainer.prepare_text import prepare_text


def prepare(job: Job) -> None:
    """Fill the job in, as the kind of its teacher wants it; what costs least is checked first.

    Raises: Refused, LadrError: something does not fit, with what to do.
    """
    torch.manual_seed(job.spec.training.seed)
    random.seed(job.spec.training.seed)
    where = find_teacher(job)
    config = models.config(where)
    (prepare_images if models.of_images(config) else prepare_text)(job, where, config)
