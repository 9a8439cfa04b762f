"""Steps on pictures."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from services.distiller.data.order import Order
from services.distiller.objective.images import ImageBatch, ImageDistillation
from services.distiller.trainer.batches import chunks
from services.distiller.trainer.job import Job
from services.distiller.trainer.lesson import autocast, spread, summed


class ImageLesson:
    """See `lesson.Lesson`. A sequence of the spec is a picture here, a token one of its patches."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.module = ImageDistillation(job.student, job.teacher, job.spec.objective, job.layer_map, heads=job.heads)
        spread(job, self.module, job.teacher)
        self._order = Order(job.corpus.train, job.spec.training.seed)

    @property
    def position(self) -> dict[str, Any]:
        return {"epoch": self._order.epoch, "next": self._order.following}

    def restore(self, position: dict[str, Any]) -> None:
        self._order.restore(position["epoch"], position["next"])

    def take(self, step: int) -> tuple[int, dict[str, float]]:
        job, training = self._job, self._job.spec.training
        offsets = [next(self._order) for _ in range(training.batch_sequences)]
        parts: Counter[str] = Counter()
        for some in chunks(job.ranks.share(offsets), training.micro_sequences):
            with autocast(job):
                losses = self.module(pictures(job, some), len(offsets))
            (losses.total * job.ranks.count).backward()  # gradients are averaged over processes
            parts.update(losses.parts)
        return len(offsets) * job.patches, summed(job, parts)


def pictures(job: Job, offsets: list[int]) -> ImageBatch:
    """The pictures of the records at these bytes, as the teacher's processor makes them."""
    found = [job.pictures.opened(job.corpus, offset) for offset in offsets]
    pixels = job.tokenizer([image for image, _ in found], return_tensors="pt")["pixel_values"]
    return ImageBatch(pixels.to(job.device), torch.tensor([label for _, label in found], device=job.device))
