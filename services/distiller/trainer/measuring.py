"""What the parts of an evaluation share: their notes, the models that they look at, and how far they are."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import torch

from services.distiller.report.notes import Notes
from services.distiller.trainer import models
from services.distiller.trainer.job import Job
from services.distiller.trainer.loading import dtype
from services.distiller.trainer.memory import give_back

T = TypeVar("T")
Name = Literal["teacher", "student", "untrained", "reference"]
COMPARED: tuple[Name, ...] = ("untrained", "student")
"""What is compared with the teacher."""


@dataclass(eq=False)
class Measuring:
    """An evaluation on its way. `step`: how many of its steps are done."""

    job: Job
    notes: Notes
    step: int = 0

    def using(self, name: Name, work: Callable[[Any], T], dtype: Any = torch.float32) -> T:
        """What `work` makes of a model, which is let go of then. Two at once: one `using` inside another."""
        model = models.weights(self.where(name), dtype).eval().requires_grad_(False).to(self.job.device)
        there = weakref.ref(model)
        try:
            return work(model)
        finally:
            del model
            let_go(self.job.device, collect=there() is not None)

    def where(self, name: Name) -> str:
        """Where a model is; the reference is what a judge finds answers likely by."""
        place, spec, settings = self.job.place, self.job.spec, self.job.settings
        if name == "student":
            return str(place.student)
        if name == "untrained":
            return str(place.initial)
        source = (name == "reference" and spec.evaluation.judge_model) or spec.teacher
        return models.find(source, settings)

    def done(self, figures: Mapping[str, float] | None = None) -> None:
        """One more step is done. Raises: Stopped."""
        self.step += 1
        self.job.meter.step(self.step, 0, {}, figures or {})
        self.job.stop.check()

    def each(self, name: str, batches: Iterable[Any], measure: Callable[[Any], Iterable[Any]]) -> list[Any]:
        """All rows of a part that is measured a batch at a time; each batch is a step."""
        rows: list[Any] = []
        for some in self.notes.each(name, batches, measure):
            rows += some
            self.done()
        return rows


def compared(m: Measuring, agrees: Callable[[Any, Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """What `agrees` finds of teacher and student, for each of COMPARED; what was found before is not measured again."""
    parts = {name: f"agreement-{name}" for name in COMPARED}
    kind = dtype(m.job)

    def with_teacher(teacher: Any) -> None:
        for name, part in parts.items():
            m.notes.once(part, lambda name=name: m.using(name, partial(agrees, teacher), kind))  # type: ignore[misc]
            m.job.stop.check()

    if m.notes.missing(*parts.values()):
        m.using("teacher", with_teacher, kind)
    return [m.notes.once(part, dict) for part in parts.values()]


def let_go(device: str, collect: bool = True) -> None:
    """Give memory back that nothing holds any more. `collect`: what holds itself, too; that takes a while."""
    if collect:
        gc.collect()
    give_back()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
