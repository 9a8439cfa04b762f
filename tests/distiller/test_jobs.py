"""Jobs over the wire: a real server, a real client, real trainer processes that are played."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import random
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from ladr import Client, SyncClient, config, errors
from ladr.config import DistillerSettings
from ladr.distill_calls import distill_spec, distill_state
from ladr.v1 import distiller_pb2 as pb
from ladr.v1 import distiller_pb2_grpc
from services.common.server import CannotStart
from services.distiller.child import Child
from services.distiller.dispatcher import environment
from services.distiller.place import Place
from tests.distiller.distillers import distiller, ended, process, spec, stepping, until
from tests.load import channel_to


async def test_a_job_is_done_and_its_student_is_where_workers_find_it(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (_, client):
        job = await client.create_distill_job(spec(), request_id="a")
        assert (distill_state(job), job.spec.objective.temperature) == ("queued", 3)
        news = [message async for message in client.watch_distill_job(job.id, from_start=True)]
        steps = [message.progress.step for message in news if message.HasField("progress")]
        assert steps == list(range(1, 11))
        assert news[0].HasField("job")
        last = news[-1].job
        assert distill_state(last) == "succeeded"
        assert last == await client.get_distill_job(job.id)
        assert dict(last.figures) == {"kl": 0.5, "top1": 0.75}
        assert (last.starts, last.progress.step, last.student_source) == (1, 10, f"students/{job.id}")
        assert (tmp_path / "models" / last.student_source / "model.safetensors").read_text() == "trained for 10 steps"
        assert job.created_at.ToMilliseconds() <= last.started_at.ToMilliseconds() <= last.finished_at.ToMilliseconds()
        report = await client.get_distill_report(job.id)
        assert json.loads(report.json)["steps"] == 10
        again = [message async for message in client.watch_distill_job(job.id)]
        assert [message.WhichOneof("event") for message in again] == ["job"]
        await client.delete_distill_job(job.id)
        assert not (tmp_path / "state" / "jobs" / job.id).exists()
        assert not (tmp_path / "models" / last.student_source).exists()
        with pytest.raises(errors.NotFound):
            await client.get_distill_job(job.id)


@pytest.mark.parametrize(
    ("int8", "there"),
    [
        ({}, False),
        ({"kind": "w8a8"}, False),
        ({"kind": "w8a8", "threshold": 0.1}, True),
        ({"kind": "weight_only", "publish_above": True}, True),
    ],
)
async def test_an_int8_form_is_published_only_if_it_is_good_enough_or_was_wanted_so(
    int8: dict[str, Any], there: bool, tmp_path: Path
) -> None:
    async with distiller(tmp_path) as (_, client):
        job = await client.create_distill_job({**spec(steps=1), "int8": int8})
        last = await ended(client, job.id)
        assert last.student_source == f"students/{job.id}"
        assert last.int8_source == (f"students/{job.id}-int8" if there else "")
        found = tmp_path / "models" / "students" / f"{job.id}-int8"
        assert found.exists() is there
        await client.delete_distill_job(job.id)
        assert not found.exists()


async def test_a_student_that_is_a_model_without_a_name_is_the_teacher(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (_, client):
        job = await client.create_distill_job({**spec(steps=1), "student": {"kind": "model"}})
        assert distill_state(await ended(client, job.id)) == "succeeded"


async def test_a_name_belongs_to_one_spec(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (_, client):
        first = await client.create_distill_job(spec(), request_id="a")
        same = await client.create_distill_job(spec(seed=0), request_id="a")  # the default, said aloud
        assert same.id == first.id
        with pytest.raises(errors.AlreadyExists) as refused:
            await client.create_distill_job(spec(seed=1), request_id="a")
        assert refused.value.resource == ("distill_job", first.id)
        names = [f"b{n}" for n in range(5)]
        jobs = await asyncio.gather(
            *(client.create_distill_job(spec("", 1000), request_id=name) for name in names for _ in range(4))
        )
        assert len({job.id for job in jobs}) == 5
        one, other = await client.create_distill_job(spec()), await client.create_distill_job(spec())
        assert one.id != other.id


WRONG = [
    ({"teacher": "../secret"}, "spec.teacher"),
    ({"teacher": "/etc"}, "spec.teacher"),
    ({"teacher": "nothing"}, "spec.teacher"),
    ({"teacher": "owner/name"}, "spec.teacher"),
    ({"teacher": "link"}, "spec.teacher"),
    ({"teacher": "a\0b"}, "spec.teacher"),
    ({"teacher": "x" * 5000}, "spec.teacher"),
    ({"student": {"kind": "model", "source": "nothing"}}, "spec.student.source"),
    ({"student": {"kind": "magic"}}, "spec.student.kind"),
    ({"student": {"layer_indices": [3, 1]}}, "spec.student"),
    ({"data": {"path": "nothing.jsonl"}}, "spec.data.path"),
    ({"data": {"path": "../data/../../etc/passwd"}}, "spec.data.path"),
    ({"data": {"path": "empty.jsonl"}}, "spec.data.path"),
    ({"data": {"path": "."}}, "spec.data.path"),
    ({"objective": {"temperature": "NaN"}}, "spec.objective.temperature"),
    ({"objective": {"task_weight": 0, "kl_weight": 0, "attention_weight": 0}}, "spec.objective"),
    ({"data": {"answers_from": "chat"}}, "spec.data.answers_from"),
    ({"evaluation": {"judge": "router", "judge_model": "chat"}}, "spec.evaluation.judge"),
    ({"evaluation": {"judge": "router"}}, "spec.evaluation"),
    ({"int8": {"kind": "int4"}}, "spec.int8.kind"),
    ({"int8": {"goal": 1}}, "spec.int8"),
    ({"int8": {"repairs": ["lora", "lora"]}}, "spec.int8"),
    ({"objective": {"on_policy": 0.5}, "training": {"processes": 2}}, "spec"),
    ({"training": {"steps": 10_000_001}}, "spec.training.steps"),
    ({"training": {"batch_sequences": 3}}, "spec.training"),
    ({"training": {"device": "cuda"}}, "spec.training.device"),
    ({"training": {"device": "tpu"}}, "spec.training.device"),
    ({"evaluation": {"tokens": 1}}, "spec.evaluation.tokens"),
]


async def test_what_cannot_be_a_job_is_refused_with_its_field(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (app, client):
        (tmp_path / "models" / "link").symlink_to("/etc")
        (tmp_path / "data" / "empty.jsonl").touch()
        for wrong, field in WRONG:
            with pytest.raises(errors.InvalidRequest) as refused:
                await client.create_distill_job({**spec(), **wrong})
            assert refused.value.field == field, wrong
            assert str(tmp_path) not in refused.value.message
        with pytest.raises(errors.InvalidRequest) as refused:
            await client.create_distill_job(spec(), request_id="x" * 129)
        assert refused.value.field == "request_id"
        with pytest.raises(errors.InvalidRequest):
            distill_spec({"student": {"leyers": 3}})
        assert not app.store.live
        for call in (
            client.get_distill_job,
            client.cancel_distill_job,
            client.resume_distill_job,
            client.delete_distill_job,
            client.get_distill_report,
        ):
            with pytest.raises(errors.NotFound):
                await call("../jobs.db")
        with pytest.raises(errors.NotFound):
            async for _ in client.watch_distill_job("nobody"):
                pass


async def test_a_hub_name_is_taken_where_that_is_allowed(tmp_path: Path) -> None:
    async with distiller(tmp_path, allow_hub=True) as (_, client):
        await client.create_distill_job({**spec("refuse"), "teacher": "owner/name"})
        with pytest.raises(errors.InvalidRequest):
            await client.create_distill_job({**spec(), "teacher": "owner/../name"})


async def test_jobs_wait_in_order_for_their_device_and_no_more_than_may(tmp_path: Path) -> None:
    async with distiller(tmp_path, max_waiting=3) as (_, client):
        jobs = [await client.create_distill_job(spec(steps=3)) for _ in range(4)]
        with pytest.raises(errors.Overloaded) as refused:
            await client.create_distill_job(spec())
        assert refused.value.retry_after
        done = [await ended(client, job.id) for job in jobs]
        for before, after in itertools.pairwise(done):
            assert before.finished_at.ToMilliseconds() <= after.started_at.ToMilliseconds()
        assert {distill_state(job) for job in done} == {"succeeded"}


async def test_a_job_has_a_gpu_for_each_process(tmp_path: Path) -> None:
    async with distiller(tmp_path, devices=("cuda:0", "cuda:1")) as (app, client):
        with pytest.raises(errors.InvalidRequest) as refused:
            await client.create_distill_job(spec(processes=4, batch_sequences=8))
        assert refused.value.field == "spec.training.processes"
        job = await client.create_distill_job(spec(steps=500, processes=2))
        await stepping(client, job.id)
        assert app.dispatcher.running[job.id].devices == ("cuda:0", "cuda:1")


async def test_two_devices_run_two_jobs(tmp_path: Path) -> None:
    async with distiller(tmp_path, devices=("cpu", "cuda:0")) as (app, client):
        on_gpu = await client.create_distill_job(spec(steps=500))
        on_cpu = await client.create_distill_job(spec(steps=500, device="cpu"))
        waits = await client.create_distill_job(spec(steps=500, device="cuda"))
        for job, device in ((on_gpu, "cuda:0"), (on_cpu, "cpu")):
            await stepping(client, job.id)
            assert app.dispatcher.running[job.id].devices == (device,)
            log = (tmp_path / "state" / "jobs" / job.id / "trainer.log").read_text()
            assert f"begins on {device} with" in log
        assert distill_state(await client.get_distill_job(waits.id)) == "queued"


@pytest.mark.parametrize(
    ("play", "reason", "starts"),
    [
        ("refuse", "DATA_EMPTY", 1),
        ("crash 3", "TRAINER_DIED", 1),
        ("killed 3", "TRAINER_KILLED", 3),
        ("empty 3", "TRAINER_DIED", 1),
    ],
)
async def test_a_trainer_that_cannot_go_on_is_a_failed_job_with_its_last_lines(
    tmp_path: Path, play: str, reason: str, starts: int
) -> None:
    async with distiller(tmp_path) as (_, client):
        job = await client.create_distill_job(spec(play))
        failed = await ended(client, job.id)
        assert (distill_state(failed), failed.error.reason, failed.starts) == ("failed", reason, starts)
        assert failed.error.message
        assert any("\\x1b[31m" in line for line in failed.error.log)
        assert all(line.isprintable() for line in failed.error.log)
        assert len(failed.error.log) <= 50
        if play.startswith("crash"):
            assert failed.error.log[-1] == "RuntimeError: no such luck"
        with pytest.raises(errors.WrongState):
            await client.get_distill_report(job.id)
        assert distill_state(await ended(client, (await client.create_distill_job(spec())).id)) == "succeeded"


async def test_a_full_disk_is_told_also_where_no_trainer_could_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with distiller(tmp_path) as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(Child, "run", full)
            failed = await ended(client, (await client.create_distill_job(spec())).id)
        assert (distill_state(failed), failed.error.reason) == ("failed", "DISK_FULL")
        await client.resume_distill_job(failed.id)
        assert distill_state(await ended(client, failed.id)) == "succeeded"


async def test_a_trainer_that_is_killed_once_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (_, client):
        job = await client.create_distill_job(spec("killed-once 7"))
        news = [message async for message in client.watch_distill_job(job.id, from_start=True)]
        steps = [(one.progress.start, one.progress.step) for one in news if one.HasField("progress")]
        assert steps == [*((1, n) for n in range(1, 8)), *((2, n) for n in range(6, 11))]
        states = [(distill_state(one.job), one.job.starts) for one in news if one.HasField("job")]
        assert states[-1] == ("succeeded", 2)
        assert ("running", 1) in states


async def test_a_cancelled_job_stops_with_a_checkpoint_and_goes_on_from_there(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (app, client):
        job = await client.create_distill_job(spec(steps=80, checkpoint_steps=1000))
        await stepping(client, job.id, 3)
        assert distill_state(await client.cancel_distill_job(job.id)) == "cancelled"
        assert distill_state(await client.cancel_distill_job(job.id)) == "cancelled"
        assert distill_state(await client.resume_distill_job(job.id)) == "queued"  # while its trainer may still end
        with pytest.raises(errors.WrongState):
            await client.resume_distill_job(job.id)
        with pytest.raises(errors.WrongState):
            await client.delete_distill_job(job.id)
        done = await ended(client, job.id)
        assert (distill_state(done), done.starts) == ("succeeded", 2)
        place = Place(tmp_path / "state" / "jobs" / job.id)
        told = [(one.start, one.step) for one, _ in place.read_progress()]
        first = max(step for start, step in told if start == 1)
        assert [step for start, step in told if start == 2] == list(range(first + 1, 81))
        assert not app.dispatcher.running


async def test_a_trainer_that_does_not_listen_is_killed_after_its_grace(tmp_path: Path) -> None:
    async with distiller(tmp_path, stop_grace="300ms") as (app, client):
        job = await client.create_distill_job(spec("deaf", steps=100_000))
        await stepping(client, job.id)
        pid = _pid(tmp_path, job.id)
        await client.cancel_distill_job(job.id)
        async with asyncio.timeout(10):
            while app.dispatcher.running:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert not _lives(pid)
        other = await client.create_distill_job(spec("deaf", steps=100_000))
        await stepping(client, other.id)
        pid = _pid(tmp_path, other.id)
        await client.cancel_distill_job(other.id)
        await client.delete_distill_job(other.id)  # does not wait for the grace
        assert not _lives(pid)


async def test_a_storm_of_cancels_resumes_and_deletes_leaves_nothing_behind(tmp_path: Path) -> None:
    rng = random.Random(5)
    async with distiller(tmp_path, devices=("cpu", "cuda:0", "cuda:1")) as (app, client):

        async def one(number: int) -> None:
            job = await client.create_distill_job(spec(steps=20, device=rng.choice(["cpu", "cuda"])))
            for _ in range(4):
                await asyncio.sleep(rng.random() / 2)
                call = rng.choice([client.cancel_distill_job, client.resume_distill_job, client.get_distill_job])
                with contextlib.suppress(errors.WrongState):
                    await call(job.id)
            await client.cancel_distill_job(job.id)
            await client.delete_distill_job(job.id)

        await asyncio.gather(*(one(n) for n in range(12)))
        assert [job async for job in client.distill_jobs()] == []
        assert not app.dispatcher.running
        assert list((tmp_path / "state" / "jobs").iterdir()) == []
        assert not list((tmp_path / "models").glob("students/*"))
        assert await app.store.doomed() == []


async def test_a_log_without_end_is_cut(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (_, client):
        job = await client.create_distill_job(spec("chatter 8", steps=60))
        await ended(client, job.id, 40)
        assert (
            sum(file.stat().st_size for file in (tmp_path / "state" / "jobs" / job.id).glob("trainer.log*")) < 7 << 20
        )


async def test_watchers_are_bounded_see_all_and_leave_nothing(tmp_path: Path) -> None:
    async with distiller(tmp_path, max_watchers=100) as (app, client), channel_to(client.address) as channel:
        job = await client.create_distill_job(spec(steps=10_000))
        stub = distiller_pb2_grpc.DistillerStub(channel)
        calls = [stub.WatchDistillJob(pb.WatchDistillJobRequest(id=job.id, from_start=True)) for _ in range(100)]
        await asyncio.gather(*(call.read() for call in calls))
        assert app.jobs.watchers == 100
        with pytest.raises(errors.Overloaded):
            async for _ in client.watch_distill_job(job.id):
                pass

        async def rest(call: Any) -> list[int]:
            steps = []
            while (message := await call.read()) is not grpc.aio.EOF:
                steps += [message.progress.step] if message.HasField("progress") else []
            return steps

        for call in calls[:20]:
            call.cancel()
        await stepping(client, job.id, 40)
        await client.cancel_distill_job(job.id)
        seen = await asyncio.gather(*(rest(call) for call in calls[20:]))
        assert all(steps == list(range(1, len(steps) + 1)) and len(steps) >= 40 for steps in seen)
        async with asyncio.timeout(5):
            while app.jobs.watchers:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_pages_have_every_job_once_and_tokens_are_not_guessed(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (_, client), channel_to(client.address) as channel:
        made = [(await client.create_distill_job(spec(steps=10_000))).id for _ in range(7)]
        for job_id in made[3:5]:
            await client.cancel_distill_job(job_id)
        stub = distiller_pb2_grpc.DistillerStub(channel)
        found: list[str] = []
        request = pb.ListDistillJobsRequest(page_size=3)
        sizes = []
        while True:
            page = await stub.ListDistillJobs(request)
            sizes.append(len(page.jobs))
            found += [job.id for job in page.jobs]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        assert (found, sizes) == (made, [3, 3, 1])
        assert [job.id async for job in client.distill_jobs("cancelled")] == made[3:5]
        token = (await stub.ListDistillJobs(pb.ListDistillJobsRequest(page_size=3))).next_page_token
        for wrong in (
            pb.ListDistillJobsRequest(page_token="x"),
            pb.ListDistillJobsRequest(page_token=token + "AAAA"),
            pb.ListDistillJobsRequest(page_token=token, state=pb.DISTILL_STATE_FAILED),
            pb.ListDistillJobsRequest(page_size=-1),
            pb.ListDistillJobsRequest(page_size=1001),
            pb.ListDistillJobsRequest(state=9),  # type: ignore[arg-type]
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.ListDistillJobs(wrong)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_page_is_no_larger_than_a_message_may_be(tmp_path: Path) -> None:
    async with distiller(tmp_path, max_message_bytes=16_000) as (_, client), channel_to(client.address) as channel:
        indices = {"student": {"layer_indices": list(range(3000))}}  # some 6 kB
        made = [(await client.create_distill_job({**spec(steps=10_000), **indices})).id for _ in range(5)]
        page = await distiller_pb2_grpc.DistillerStub(channel).ListDistillJobs(pb.ListDistillJobsRequest())
        assert 1 <= len(page.jobs) < 5
        assert [job.id async for job in client.distill_jobs()] == made


async def test_a_job_that_is_asked_to_end_before_it_has_begun_begins_later(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (app, client):
        for _ in range(2):
            job = await client.create_distill_job(spec(steps=2))
            while job.id not in app.dispatcher.running:  # noqa: ASYNC110
                await asyncio.sleep(0)
            app.dispatcher.running[job.id].child.stop()  # as a cancellation does that a resumption has overtaken
            assert distill_state(await ended(client, job.id)) == "succeeded"


async def test_a_file_that_holds_no_jobs_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "jobs.db").write_bytes(b"no data base, whatever its name says" * 100)
    with pytest.raises(CannotStart, match=r"jobs\.db cannot be used \(file is not a database\)"):
        async with distiller(tmp_path):
            pass


async def test_an_old_trainer_that_does_not_leave_is_killed_before_another_begins(tmp_path: Path) -> None:
    service = process(tmp_path, LADR_DISTILLER__STOP_GRACE="500ms")
    try:
        await service.start()
        async with Client(service.address) as client:
            job = await client.create_distill_job(spec("deaf", steps=60))
            await stepping(client, job.id, 5)
            old = _pid(tmp_path, job.id)
            service.send(signal.SIGKILL)
            await service.ended()
            assert _lives(old)
            await service.start()
            done = await ended(client, job.id)
            assert (distill_state(done), done.starts) == ("succeeded", 2)
            assert not _lives(old)
            told = [one.start for one, _ in Place(tmp_path / "state" / "jobs" / job.id).read_progress()]
            assert told == sorted(told), "two trainers wrote at once"
    finally:
        await service.kill()


def test_a_trainer_has_the_settings_of_its_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = DistillerSettings(
        state=Path("a b"),
        allow_hub=True,
        devices=("cuda:0", "cuda:1", "cpu"),
        stop_grace="90s",
        max_message_bytes=1 << 20,
    )
    seen = config.load(None, environment(settings, ("cuda:1",))).distiller
    paths = {"state": tmp_path / "a b", "model_root": tmp_path / "models", "data_root": tmp_path / "data"}
    assert seen == settings.model_copy(update={**paths, "devices": ("cuda:1",)})


async def test_the_twin_without_asyncio_does_the_same(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (_, client):

        def calls() -> None:
            with SyncClient(client.address) as twin:
                job = twin.create_distill_job(distill_spec(spec(steps=3)), request_id="a")
                news = list(twin.watch_distill_job(job.id, from_start=True))
                assert [one.progress.step for one in news if one.HasField("progress")] == [1, 2, 3]
                assert twin.get_distill_job(job.id) == news[-1].job
                assert [each.id for each in twin.distill_jobs("succeeded")] == [job.id]
                assert twin.get_distill_report(job.id).json
                assert distill_state(twin.cancel_distill_job(job.id)) == "succeeded"
                with pytest.raises(errors.WrongState):
                    twin.resume_distill_job(job.id)
                twin.delete_distill_job(job.id)
                assert not list(twin.distill_jobs())

        await asyncio.to_thread(calls)


async def test_metrics_tell_of_jobs_and_of_the_running_one(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (app, client):
        await ended(client, (await client.create_distill_job(spec("refuse"))).id)
        job = await client.create_distill_job(spec(steps=10_000))
        await stepping(client, job.id)

        def scrape() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{app.server.http_port}/metrics") as page:
                return str(page.read().decode())

        page = await asyncio.to_thread(scrape)
        for line in (
            'ladr_distill_jobs{state="failed"} 1.0',
            'ladr_distill_jobs{state="running"} 1.0',
            'ladr_distill_phase{device="cpu"} 3.0',
            'ladr_distill_steps{device="cpu"} 10000.0',
            'ladr_distill_tokens_per_second{device="cpu"} 5000.0',
            'ladr_distill_loss{device="cpu",part="kl"}',
        ):
            assert line in page, line
        assert "odd part" not in page
        assert job.id not in page


async def test_a_second_service_on_the_same_state_is_refused(tmp_path: Path) -> None:
    async with distiller(tmp_path):
        with pytest.raises(CannotStart, match="another distiller"):
            async with distiller(tmp_path):
                pass


async def test_a_killed_service_goes_on_where_its_trainer_was(tmp_path: Path) -> None:
    service = process(tmp_path)
    try:
        await service.start()
        async with Client(service.address) as client:
            job = await client.create_distill_job(spec(steps=90, checkpoint_steps=5))
            waits = await client.create_distill_job(spec(steps=2))
            for step in (10, 20, 30):  # more often than a trainer may die
                await stepping(client, job.id, step)
                pid = _pid(tmp_path, job.id)
                service.send(signal.SIGKILL)
                await service.ended()
                await service.start()
                await until(client, job.id, lambda job: distill_state(job) in ("queued", "running"))
                assert distill_state(await client.get_distill_job(waits.id)) == "queued"
                async with asyncio.timeout(10):
                    while _lives(pid):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
            done = await ended(client, job.id)
            assert (distill_state(done), done.starts) == ("succeeded", 4)
            assert distill_state(await ended(client, waits.id)) == "succeeded"
            place = Place(tmp_path / "state" / "jobs" / job.id)
            by_start: dict[int, list[int]] = {}
            for one, _ in place.read_progress():
                by_start.setdefault(one.start, []).append(one.step)
            for start in range(2, 5):
                assert by_start[start][0] <= by_start[start - 1][-1] + 1
                assert by_start[start][0] > by_start[start - 1][0]
            assert by_start[4][-1] == 90
    finally:
        await service.kill()


async def test_sigterm_lets_trainers_write_a_checkpoint_and_they_go_on_at_the_next_start(tmp_path: Path) -> None:
    service = process(tmp_path)
    try:
        await service.start()
        async with Client(service.address) as client:
            job = await client.create_distill_job(spec(steps=50, checkpoint_steps=1000))
            watch = client.watch_distill_job(job.id)
            await stepping(client, job.id, 3)
            service.send(signal.SIGTERM)
            with pytest.raises((errors.Draining, errors.Unreachable)):
                async for _ in watch:
                    pass
            assert await service.ended(10) == 0
            assert list((tmp_path / "state" / "jobs" / job.id / "checkpoints").iterdir())
        await service.start()
        async with Client(service.address) as client:
            done = await ended(client, job.id)
            assert (distill_state(done), done.starts) == ("succeeded", 2)
    finally:
        await service.kill()


async def test_grpcurl_lists_describes_and_calls_it(tmp_path: Path) -> None:
    async with distiller(tmp_path) as (_, client):
        grpcurl = str(Path(sys.executable).parent / "grpcurl")

        async def call(*arguments: str) -> str:
            done = await asyncio.to_thread(
                subprocess.run, [grpcurl, "-plaintext", *arguments], capture_output=True, text=True, timeout=20
            )
            assert done.returncode == 0, done.stderr
            return str(done.stdout)

        assert "ladr.v1.Distiller" in await call(client.address, "list")
        assert "rpc WatchDistillJob" in await call(client.address, "describe", "ladr.v1.Distiller")
        body = json.dumps({"spec": MessageToDict(distill_spec(spec()))})
        made = json.loads(await call("-d", body, client.address, "ladr.v1.Distiller/CreateDistillJob"))
        assert made["state"] == "DISTILL_STATE_QUEUED"
        health = json.dumps({"service": "ladr.v1.Distiller"})
        assert "SERVING" in await call("-d", health, client.address, "grpc.health.v1.Health/Check")


def _pid(directory: Path, job_id: str) -> int:
    return int((directory / "state" / "jobs" / job_id / "lock").read_text())


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
