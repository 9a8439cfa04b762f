"""`ladr distill` against a real distiller whose trainers are played, and its parts by themselves."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ladr import Client
from ladr.cli.distill_spec import read_spec
from ladr.cli.distill_view import Curve, LiveView, duration, sparkline
from ladr.cli.misuse import Misuse
from ladr.distill_calls import distill_spec, distill_state
from ladr.errors import InvalidRequest
from ladr.v1 import distiller_pb2 as pb
from tests.cli.test_commands import Terminal
from tests.distiller.distillers import distiller, ended, process, spec, stepping
from tests.processes import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    async with distiller(tmp_path_factory.mktemp("distiller"), stop_grace="2s") as (_, client):
        yield client


async def started(*arguments: str, **environ: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ladr", "distill", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **environ},
    )


async def run(client: Client, *arguments: str) -> tuple[int | None, str, str]:
    made = await started(*arguments, LADR_DISTILLER_ADDRESS=client.address)
    out, err = await made.communicate()
    return made.returncode, out.decode(), err.decode()


async def test_a_job_without_a_step_is_started_and_watched(there: Client, tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text(yaml.safe_dump(spec(steps=5)))
    int8 = ("--set", "int8.kind=w8a8", "--set", "int8.publish_above=true")
    code, out, _ = await run(there, "start", str(file), "--steps", "0", *int8, "--watch")
    assert code == 0
    first, *_, student, quantised = out.splitlines()
    assert "train" not in out
    assert student.startswith("student: ")
    assert quantised == f"int8: students/{first.split()[0]}-int8"


async def test_a_job_is_started_from_a_file_and_flags_watched_shown_and_reported(there: Client, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(spec(steps=5)))
    code, out, err = await run(
        there, "start", str(file), "--steps", "4", "--seed", "7", "--set", "training.learning_rate=1e-4", "--watch"
    )
    assert code == 0, err
    first, *steps, done, student = out.splitlines()
    job_id = first.split()[0]
    assert steps[-1].startswith("train 4/4  loss 0.75 (kl 0.5, odd part 1)  5,000 tokens/s  0s left")
    assert done == f"{job_id} succeeded"
    assert student == f"student: students/{job_id}; kl 0.5, top1 0.75"
    code, out, _ = await run(there, "get", job_id, "-o", "json")
    job = json.loads(out)
    assert (job["spec"]["training"]["learning_rate"], job["spec"]["training"]["seed"]) == (1e-4, "7")
    code, out, _ = await run(there, "list")
    assert [row.split("\t")[:4] for row in out.splitlines() if job_id in row] == [[job_id, "succeeded", "train", "4/4"]]
    code, out, _ = await run(there, "report", job_id)
    assert code == 0
    assert "kl\t0.5" in out
    assert await run(there, "delete", job_id) == (0, "", "")
    code, out, err = await run(there, "get", job_id)
    assert (code, out, len(err.splitlines())) == (1, "", 1)


async def test_a_job_that_fails_is_exit_code_1_with_reason_and_last_lines(there: Client) -> None:
    job = await there.create_distill_job(spec("crash 2"))
    code, out, err = await run(there, "watch", job.id, "--from-start", "-o", "json")
    news = [json.loads(row) for row in out.splitlines()]
    assert code == 1
    assert [one["progress"]["step"] for one in news if "progress" in one] == [1, 2]
    assert news[-1]["job"]["state"] == "DISTILL_STATE_FAILED"
    code, out, err = await run(there, "watch", job.id)
    assert code == 1
    assert out == f"{job.id} failed\n"
    *log, last = err.splitlines()
    assert log[-1] == "  RuntimeError: no such luck"
    assert last.startswith("failed: TRAINER_DIED: ")


async def test_a_queued_job_says_what_it_waits_for(there: Client) -> None:
    first, second, third = [await there.create_distill_job(spec(steps=2000)) for _ in range(3)]
    await stepping(there, first.id)
    watch = await started("watch", third.id, LADR_DISTILLER_ADDRESS=there.address)
    assert watch.stderr
    said = await watch.stderr.readline()
    assert said.decode() == "it waits for a device: 1 running, 1 waiting beside it\n"
    for job in (third, second, first):
        await there.cancel_distill_job(job.id)
    out, _ = await watch.communicate()
    assert out.decode().splitlines() == [f"{third.id} queued", f"{third.id} cancelled"]


async def test_a_report_of_a_job_that_failed_says_how_to_go_on(there: Client) -> None:
    job = await there.create_distill_job(spec("crash 2"))
    await ended(there, job.id)
    for command in (("report", job.id), ("publish", job.id, "--name", "chat")):
        assert await run(there, *command) == (
            *(1, ""),
            f"ladr: the job has failed: see `ladr distill get {job.id}`, then resume it\n",
        )


async def test_jobs_are_cancelled_and_resumed(there: Client) -> None:
    job = await there.create_distill_job(spec(steps=1000))
    await stepping(there, job.id)
    code, out, _ = await run(there, "cancel", job.id, "-o", "json")
    assert (code, json.loads(out)["state"]) == (0, "DISTILL_STATE_CANCELLED")
    code, out, _ = await run(there, "resume", job.id)
    assert (code, out.splitlines()[1].split("\t")[1]) == (0, "queued")
    code, _, err = await run(there, "resume", job.id)
    assert (code, len(err.splitlines())) == (1, 1)
    await there.cancel_distill_job(job.id)


async def test_a_terminal_has_a_bar_a_curve_and_leaves_the_job_running_at_control_c(there: Client) -> None:
    job = await there.create_distill_job(spec(steps=2000))
    terminal = Terminal("distill", "watch", job.id, "--distiller", there.address, COLUMNS="120")
    await terminal.until("running")
    await terminal.until("tokens/s")
    await terminal.until("█")
    terminal.type("\x03")
    await terminal.until(f"the job goes on; watch it again with: ladr distill watch {job.id}")
    assert await terminal.ended() == 1
    assert distill_state(await there.get_distill_job(job.id)) == "running"
    await there.cancel_distill_job(job.id)


async def test_a_watch_outlives_a_restart_of_the_service(tmp_path: Path) -> None:
    service, watch = process(tmp_path), None
    try:
        await service.start()
        async with Client(service.address) as client:
            job = await client.create_distill_job(spec(steps=100))
            watch = await started("watch", job.id, "--distiller", service.address, "--from-start")
            assert watch.stdout
            while b"train 10/" not in await watch.stdout.readline():
                pass
            service.send(signal.SIGKILL)
            await service.ended()
            await service.start()
            await ended(client, job.id)
        out, err = await watch.communicate()
        assert watch.returncode == 0
        assert err.decode().count("does not answer; waiting for it") == 1
        rows = out.decode().splitlines()
        assert len([row for row in rows if row.startswith("train 100/100")]) == 1
        assert rows[-1].startswith("student: ")
    finally:
        await service.kill()
        if watch and watch.returncode is None:
            watch.kill()
            await watch.communicate()


async def test_a_spec_that_is_no_text_is_misuse_in_one_line(there: Client, tmp_path: Path) -> None:
    (file := tmp_path / "job.yml").write_bytes(b"teacher: \xff\n")
    code, out, err = await run(there, "start", str(file))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "UTF-8" in err


async def test_what_is_no_spec_is_misuse_in_one_line(there: Client, tmp_path: Path) -> None:
    code, out, err = await run(there, "start", "--set", "training.stepz=3")
    assert (code, out, err) == (2, "", "ladr: a spec has no 'training.stepz'; did you mean 'training.steps'?\n")


async def test_what_the_service_refuses_is_named_by_its_place_in_the_spec(there: Client) -> None:
    assert await run(there, "start", "--set", "objective.kl_weight=-1") == (
        *(2, ""),
        "ladr: objective.kl_weight: Input should be greater than or equal to 0\n",
    )
    assert await run(there, "start", "--data", "data/chats.jsonl", "--teacher", "teacher") == (
        *(2, ""),
        "ladr: data.path: there is no file data/chats.jsonl under distiller.data_root: paths are relative to it\n",
    )


async def test_of_several_jobs_the_one_that_is_not_there_is_named(there: Client) -> None:
    job = await there.create_distill_job(spec(steps=1))
    await ended(there, job.id)
    assert await run(there, "delete", job.id, "nosuch") == (1, "", "ladr: there is no such job: nosuch\n")


@pytest.mark.parametrize(
    ("text", "sets", "complaint"),
    [
        ("- 1", [], "the spec: give a mapping"),
        ("{a", [], "the spec is neither YAML nor JSON"),
        ("teachr: x", [], "no 'teachr'; did you mean 'teacher'"),
        ("student: 5", [], "student: give a mapping"),
        ("student: {zzz: 5}", [], "no 'student.zzz'; known here: kind"),
        ("", ["steps=3"], "no 'steps'"),
        ("", ["training.steps"], "give KEY=VALUE"),
        ("", ["teacher.x=1"], "'teacher' has nothing under it"),
        ("", ["training=1"], "training: give a mapping"),
        ("", ["training.steps={"], "is no value"),
    ],
)
async def test_a_mistake_in_a_spec_is_named(text: str, sets: list[str], complaint: str) -> None:
    with pytest.raises(Misuse) as wrong:
        read_spec(text, {}, sets)
    assert complaint in wrong.value.message


@pytest.mark.parametrize(
    ("text", "sets", "complaint"),
    [
        ("", ["student.layers=twenty"], "student.layers: give a whole number, not 'twenty'"),
        ("", ["training.steps=-1"], "training.steps: give 0 to 4294967295, not '-1'"),
        ("", ["training.learning_rate=fast"], "training.learning_rate: give a number, not 'fast'"),
        ("", ["data.score_prompts=maybe"], "data.score_prompts: give true or false, not 'maybe'"),
        ("", ["student.layer_indices=0,b"], "student.layer_indices: give a list of whole numbers, not \"['0', 'b']\""),
        ("teacher: 5", [], "teacher: give text, not '5'"),
        ("int8: {repairs: 7}", [], "int8.repairs: give a list of texts, not '7'"),
    ],
)
async def test_a_value_of_a_wrong_kind_is_named_with_what_its_field_takes(
    text: str, sets: list[str], complaint: str
) -> None:
    with pytest.raises(InvalidRequest) as wrong:
        read_spec(text, {}, sets)
    assert str(wrong.value) == complaint


async def test_in_python_too_a_name_that_no_spec_has_is_refused() -> None:
    for training, complaint in (
        ({"stepz": 3}, "training.stepz: there is no such field; known here: steps, "),
        (3, "training: give a mapping with steps, "),
    ):
        with pytest.raises(InvalidRequest) as wrong:
            distill_spec({"training": training})
        assert str(wrong.value).startswith(complaint)


async def test_set_wins_over_flags_and_those_over_the_file() -> None:
    text = "{teacher: a, training: {steps: 1, seed: 1, dtype: float32}}"
    sets = [
        "training.seed=3", "student.layer_indices=0,2, 5", "data.score_prompts=true",
        "teacher=123", "objective.temperature=1e-2",
    ]  # fmt: skip
    made = read_spec(text, {"training.steps": 2, "training.seed": 2, "data.path": None}, sets)
    assert made == distill_spec(
        {
            "teacher": "123",
            "training": {"steps": 2, "seed": 3, "dtype": "float32"},
            "student": {"layer_indices": [0, 2, 5]},
            "objective": {"temperature": 0.01},
            "data": {"score_prompts": True},
        }
    )


async def test_a_hostile_job_moves_no_terminal() -> None:
    shown = io.StringIO()
    job = pb.DistillJob(id="\x1b[2Jid", state=pb.DISTILL_STATE_RUNNING)
    progress = pb.DistillProgress(phase=99, step=7)  # type: ignore[arg-type]
    progress.losses.update({"total": math.nan, "\x1b]0;x\x07": math.inf})
    with LiveView(Console(file=shown, force_terminal=True, width=100)) as view:
        view.take(pb.WatchDistillJobResponse(job=job))
        for _ in range(3):
            view.take(pb.WatchDistillJobResponse(progress=progress))
        view.away("h:1")
    assert "\x1b[2J" not in shown.getvalue()
    assert "\x1b]0" not in shown.getvalue()
    assert "\\x1b[2Jid" in shown.getvalue()


@given(st.lists(st.floats(), max_size=300))
async def test_a_curve_is_bounded_and_keeps_its_ends(values: list[float]) -> None:
    curve = Curve(10)
    for value in values:
        curve.add(value)
    assert len(curve.drawn()) <= 20
    assert curve.count == len(values)
    if values:
        assert repr(curve.ends) == repr((values[0], values[-1]))


async def test_the_least_is_the_lowest_block() -> None:
    assert sparkline([1.0, 2.0, 3.0]) == "▁▅█"
    assert sparkline([1.0, math.nan, 1.0]) == "▁ ▁"
    assert sparkline([]) == ""


async def test_durations_are_short() -> None:
    assert [duration(seconds) for seconds in (0.4, 59.6, 70, 3599, 7260)] == ["0s", "1m00s", "1m10s", "59m59s", "2h01m"]
