"""A whole job whose records are answered by a worker behind a router first."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.place import DONE, FAILED
from services.distiller.trainer.__main__ import work
from services.distiller.trainer.stop import Stop
from tests.distiller.trainer.conftest import Workshop, curve, progress
from tests.load import channel_to, eligible
from tests.processes import mesh


async def test_a_job_learns_what_a_worker_answered(workshop: Workshop, tmp_path: Path) -> None:
    place = workshop.job(data={"answers_from": "sim"}, training={"steps": 2})
    jobs = {"LADR_ROUTER__JOBS__STORE": "sqlite", "LADR_ROUTER__JOBS__PATH": str(tmp_path / "jobs.db")}
    async with mesh(1, router=jobs) as fleet, channel_to(fleet.router.address) as channel:
        await eligible(channel, "worker-1")
        settings = workshop.settings.model_copy(update={"router": fleet.router.address})
        assert await asyncio.to_thread(work, place, place.read_spec(), settings, Stop(), 0.0) == DONE
    phases = [one.phase for one in progress(place)]
    assert phases.index(DistillPhase.DISTILL_PHASE_ANSWER) < phases.index(DistillPhase.DISTILL_PHASE_TRAIN)
    told = [one for one in progress(place) if one.phase == DistillPhase.DISTILL_PHASE_ANSWER][-1]
    assert (told.step, told.total_steps, told.figures["answered"]) == (60, 60, 60)
    assert len(curve(place)) == 2
    again = await asyncio.to_thread(workshop.run, place)  # what is answered is not asked again
    assert again == DONE


def test_a_service_without_a_router_cannot_have_answers(workshop: Workshop) -> None:
    place = workshop.job(data={"answers_from": "chat"})
    assert workshop.run(place) == FAILED
    assert place.read_failure().reason == "NO_ROUTER"
