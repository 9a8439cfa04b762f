"""From a teacher to answers of its student: the real trainer, a worker with a real engine, a router, one roll-out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ladr import Client
from ladr.distill_calls import distill_state
from ladr.v1 import distiller_pb2 as pb
from services.distiller.dispatcher import TRAINER
from tests.distiller import tiny
from tests.distiller.distillers import distiller, ended
from tests.load import channel_to, eligible
from tests.processes import mesh


@pytest.mark.timeout(180)
async def test_a_student_is_made_quantised_reported_and_answers_through_the_router(tmp_path: Path) -> None:
    models = tmp_path / "models"
    tiny.save(models / "tiny")
    tiny.write(tmp_path / "chats.jsonl", tiny.conversations(60))
    spec = {
        "teacher": "tiny",
        "student": {"layers": 2},
        "data": {"path": "chats.jsonl", "sequence_tokens": 64, "holdout": 0.2},
        "training": {"steps": 4, "batch_sequences": 2, "micro_sequences": 2, "threads": 1},
        "evaluation": {"tokens": 300, "battles": 2, "answer_tokens": 4, "refusal_pairs": 1},
        "int8": {"kind": "w8a8", "dialogues": 20, "publish_above": True},
    }
    worker = {
        "LADR_WORKER__ENGINE": "transformers",
        "LADR_WORKER__MODEL_ROOT": str(models),
        "LADR_WORKER__MODELS": json.dumps([{"name": "chat", "source": "tiny", "context_tokens": 128}]),
        "LADR_WORKER__SLOTS": "2",
    }
    async with (
        mesh(1, worker=worker) as fleet,
        channel_to(fleet.router.address) as channel,
        Client(fleet.router.address) as router,
        distiller(tmp_path, TRAINER, router=fleet.router.address, data_root=tmp_path) as (_, client),
    ):
        await eligible(channel, "worker-1")
        job = await ended(client, (await client.create_distill_job(spec)).id, within_s=120)
        assert distill_state(job) == "succeeded", job.error
        assert {"kl", "top1", "elo", "refused_harmful", "speed_ratio", "int8_kl"} <= set(job.figures)
        report = await client.get_distill_report(job.id, html=True)
        assert report.html.startswith("<!doctype html>")
        for int8, name in ((False, "student"), (True, "student-int8")):
            request = pb.PublishStudentRequest(
                id=job.id, name="chat", model=name, int8=int8, stages=[1], stage_requests=0
            )
            request.stage_time.FromMilliseconds(100)
            rollout = await client.publish_student(request)
            async for news in client.watch_rollout(rollout.id):
                rollout = news
            assert rollout.state == pb.ROLLOUT_STATE_SUCCEEDED, rollout.reason
            async with asyncio.timeout(20):
                answer = await router.complete("3+4?", model="chat", max_tokens=4, temperature=0)
            assert (answer.model, len(answer.token_ids)) == (name, 4)
