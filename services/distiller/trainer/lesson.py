"""What a training loop asks of what is learned: text (`text_lesson`) or pictures (`image_lesson`)."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from services.distiller.trainer.job import Job
from services.distiller.trainer.loading import dtype


class Lesson(Protocol):
    """Attributes: module: student, teacher and projections; its parameters that want a gradient are trained."""

    module: Any

    def take(self, step: int) -> tuple[int, dict[str, float]]:
        """Add the gradient of this step; gives how many tokens it was made of, and its losses, "total" among them."""

    @property
    def position(self) -> dict[str, Any]:
        """Where in the data it is, as JSON."""

    def restore(self, position: dict[str, Any]) -> None:
        """Go on from there."""


def spread(job: Job, module: Any, teacher: Any) -> None:
    """Student, teacher and projections over the processes."""
    module.projections.to(job.device)
    for model in (job.student, teacher):
        if model is not None:
            job.ranks.shard(model, job.device, dtype(job))
    for projection in module.projections:
        job.ranks.shard_whole(projection, job.device)


def autocast(job: Job) -> Any:
    """The type that is computed in, for a block."""
    return torch.autocast(job.device.split(":")[0], torch.bfloat16, enabled=dtype(job) == torch.bfloat16)


def summed(job: Job, parts: dict[str, Any]) -> dict[str, float]:
    """Losses of this process's share as those of all, with their total."""
    values = job.ranks.sum(torch.stack([torch.as_tensor(part).float() for part in parts.values()]))
    found = dict(zip(parts, values.tolist(), strict=True))
    return {"total": sum(found.values()), **found}
