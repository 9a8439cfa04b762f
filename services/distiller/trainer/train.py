"""Optimiser steps, from the newest checkpoint to the last step."""

from __future__ import annotations

import logging
import math

import torch

from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.refused import Refused
from services.distiller.trainer import checkpoint
from services.distiller.trainer.checkpoint import Progress
from services.distiller.trainer.image_lesson import ImageLesson
from services.distiller.trainer.job import Job
from services.distiller.trainer.lesson import Lesson
from services.distiller.trainer.memory import give_back
from services.distiller.trainer.schedule import groups, learning_rate
from services.distiller.trainer.stop import Stopped
from services.distiller.trainer.text_lesson import TextLesson

log = logging.getLogger(__name__)


def train(job: Job) -> None:
    """Take the steps that are left, if there are any.

    Raises: Refused: NOT_FINITE. Stopped: after a checkpoint.
    """
    training = job.spec.training
    if not training.steps:
        return
    run = _Run(job, ImageLesson(job) if job.of_images else TextLesson(job))
    job.meter.begin(DistillPhase.DISTILL_PHASE_TRAIN, training.steps, run.step, run.tokens)
    while run.step < training.steps:
        run.advance()
        stop = job.ranks.any(job.stop.requested, job.device)
        if stop or run.step == training.steps or run.step % training.checkpoint_steps == 0:
            run.save()
        if stop:
            raise Stopped


class _Run:
    """The state of the training: all of it is in a checkpoint, so that a run that was interrupted ends as one that was not."""

    def __init__(self, job: Job, lesson: Lesson) -> None:
        self._job, self._lesson = job, lesson
        self._training = job.spec.training
        self._trained = {name: one for name, one in lesson.module.named_parameters() if one.requires_grad}
        self._optimizer = torch.optim.AdamW(
            groups(self._trained.values(), self._training.weight_decay), lr=self._training.learning_rate, fused=True
        )
        self.step = self.tokens = 0
        self._resume()

    def advance(self) -> None:
        """One step."""
        rate = learning_rate(self.step, self._training)
        tokens, losses = self._lesson.take(self.step)
        norm = torch.nn.utils.clip_grad_norm_(self._trained.values(), self._training.clip_norm)
        norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if not all(map(math.isfinite, (*losses.values(), norm))):
            raise Refused(
                "NOT_FINITE",
                f"the loss or gradient of step {self.step + 1} is not a finite number: lower training.learning_rate,"
                " or train in float32",
            )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        give_back()
        self.step += 1
        self.tokens += tokens
        self._job.meter.step(self.step, tokens, losses, {"learning_rate": rate, "gradient_norm": norm})

    def save(self) -> None:
        progress = Progress(self.step, self.tokens, self._lesson.position)
        checkpoint.save(self._job.place.checkpoints, progress, self._trained, self._optimizer, self._job.ranks)
        self._job.ranks.wait()

    def _resume(self) -> None:
        path = checkpoint.newest(self._job.place.checkpoints)
        if path is None:
            return
        found = checkpoint.load(path, self._trained, self._optimizer)
        self._lesson.restore(found.position)
        self.step, self.tokens = found.step, found.tokens
        log.info("going on from step %d", self.step)
