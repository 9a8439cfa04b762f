"""The phases of a job, in order. Each finds out by itself what an earlier start has done."""

from __future__ import annotations

from collections.abc import Callable

from services.distiller.trainer.answer import answer
from services.distiller.trainer.evaluate import evaluate
from services.distiller.trainer.job import Job
from services.distiller.trainer.prepare import prepare
from services.distiller.trainer.quantize import quantize
from services.distiller.trainer.save import save
from services.distiller.trainer.teach import teach
from services.distiller.trainer.train import train

PHASES: tuple[Callable[[Job], None], ...] = (answer, prepare, teach, train, save, quantize, evaluate)


def run(job: Job) -> None:
    """Raises: Stopped, or whatever a phase gives up with (see `failures`)."""
    for phase in PHASES:
        job.stop.check()
        phase(job)
