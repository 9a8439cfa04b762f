"""First of all, where that was asked for: the records are answered by a model behind the router."""

from __future__ import annotations

from ladr.sync_client import SyncClient
from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.data.answers import Asked, Count, gather, records
from services.distiller.data.corpus import find
from services.distiller.refused import Refused
from services.distiller.trainer.job import Job


def answer(job: Job) -> None:
    """Write `answered/records.jsonl`, unless it is there. One process does it, the others wait for the file.

    Raises: Refused: the service knows no router, or see `answers.gather`.
    """
    data = job.spec.data
    if not data.answers_from or job.place.answered.exists():
        return
    if not job.ranks.first:
        job.wait_for(job.place.answered)
        return
    if job.settings.router is None:
        raise Refused("NO_ROUTER", "answers come through a router: set distiller.router to its address")
    source = find(data.path, job.settings.data_root)
    job.meter.begin(DistillPhase.DISTILL_PHASE_ANSWER, records(source))
    asked = Asked(data.answers_from, data.answer_tokens, job.place.root.name)
    with SyncClient(job.settings.router) as router:
        gather(source, job.place.answered, asked, router, lambda count: _tell(job, count), job.stop.check)


def _tell(job: Job, count: Count) -> None:
    figures = {"answered": count.answered, "cut": count.cut, "failed": count.failed}
    job.meter.step(count.all, 0, {}, figures)
