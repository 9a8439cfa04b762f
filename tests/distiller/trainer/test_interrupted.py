"""A job that is killed, stopped or spread over processes ends as one that is not."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ladr.v1.distiller_pb2 import DistillPhase
from services.common.int8.notes import read_notes
from services.distiller.machine import Die
from services.distiller.outcome import outcome
from services.distiller.place import DONE, FAILED, STOPPED, Place
from services.distiller.trainer import launch
from services.distiller.trainer.stop import Stop
from tests.distiller import tiny
from tests.distiller.trainer.conftest import Workshop, curve, progress, weights
from tests.processes import ROOT


def test_a_job_that_was_killed_twice_ends_with_the_same_weights_bit_for_bit(workshop: Workshop) -> None:
    whole, killed = workshop.job("whole"), workshop.job("killed")
    assert workshop.run(whole) == DONE

    assert workshop.run_apart(killed, "kill-checkpoint-8") == -signal.SIGKILL
    assert {path.name for path in killed.checkpoints.iterdir()} == {"step-00000004", "step-00000008.new"}
    assert workshop.run_apart(killed, "kill-step-10") == -signal.SIGKILL
    assert not killed.student.exists()
    assert workshop.run(killed) == DONE

    assert weights(killed) == weights(whole)
    assert curve(killed) == curve(whole)
    steps = {start: [one.step for one in progress(killed) if one.start == start and one.losses] for start in (1, 2, 3)}
    assert steps == {1: list(range(1, 9)), 2: list(range(5, 11)), 3: list(range(9, 13))}
    assert [path.name for path in sorted(killed.checkpoints.iterdir())] == ["step-00000008", "step-00000012"]


def test_a_job_that_samples_from_its_student_goes_on_with_the_same_samples(workshop: Workshop) -> None:
    objective = {"on_policy": 0.5, "attention_weight": 0.0}
    whole, stopped = workshop.job("whole", objective=objective), workshop.job("stopped", objective=objective)
    assert workshop.run(whole) == DONE
    assert workshop.run(stopped, StopsAfter(stopped, 6)) == STOPPED
    assert workshop.run(stopped) == DONE
    assert weights(stopped) == weights(whole)
    assert {"task" in losses for losses in curve(whole).values()} == {True, False}  # its own words are not its task


def test_what_was_damaged_and_can_be_made_again_is_made_again(workshop: Workshop) -> None:
    wanted = {"objective": {"teacher_top_k": 8}, "int8": {"kind": "weight_only", "threshold": 10.0}}
    whole, damaged = workshop.job("whole", **wanted), workshop.job("damaged", **wanted)
    assert workshop.run(whole) == DONE

    def same() -> bool:
        def content(root: Path) -> dict[str, bytes]:
            return {file.name: file.read_bytes() for file in root.iterdir() if file.suffix == ".safetensors"}

        kept = [(one.student, one.student_int8, one.taught) for one in (whole, damaged)]
        return all(content(one) == content(other) for one, other in zip(*kept, strict=True))

    assert workshop.run(damaged, StopsAfter(damaged, 6)) == STOPPED
    shard = next(damaged.taught.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-64] + bytes(64))
    (damaged.checkpoints / "step-00000006" / "state.json").write_text("{}")
    assert workshop.run(damaged) == DONE
    training = [one for one in progress(damaged) if one.phase == DistillPhase.DISTILL_PHASE_TRAIN and one.losses]
    assert min(one.step for one in training if one.start == 2) == 5, "from the checkpoint before"
    assert same()

    model = damaged.student / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-64] + bytes(64))
    assert workshop.run(damaged) == DONE
    assert same()
    assert "| kl |" in (damaged.student / "README.md").read_text()
    (damaged.student_int8 / "int8.json").write_text("{}")
    for part in ("report.json", "agreement-student.json"):
        (damaged.report / part).write_text("{")
    assert workshop.run(damaged) == DONE
    assert same()
    assert read_notes(damaged.student_int8).kind == "weight_only"
    reports = [json.loads((one.report / "report.json").read_bytes()) for one in (whole, damaged)]
    assert reports[0]["figures"]["kl"] == reports[1]["figures"]["kl"]


@pytest.mark.parametrize("file", ["student.json", "model.safetensors", "config.json"])
def test_a_student_that_was_damaged_before_its_first_step_is_told_by_its_directory(
    workshop: Workshop, file: str
) -> None:
    place = workshop.job()
    assert workshop.run(place, StopsAfter(place, 2)) == STOPPED
    content = (place.initial / file).read_bytes()
    for harm in (b"", b"{}", content[:-64] + bytes(64)):
        (place.initial / file).write_bytes(harm)
        assert workshop.run(place) == FAILED
        failure = place.read_failure()
        assert failure is not None
        assert failure.reason == "JOB_DAMAGED"
        assert "initial/" in failure.message
        assert "new job" in failure.message


class StopsAfter(Stop):
    """Asks to stop once that step is in the progress."""

    def __init__(self, place: Place, step: int) -> None:
        self._place, self._step = place, step

    @property
    def requested(self) -> bool:  # type: ignore[override]
        return self._step in curve(self._place)


def test_two_processes_have_the_losses_of_one_and_go_on_where_they_were_stopped(workshop: Workshop) -> None:
    one = workshop.job("one")
    two = workshop.job("two", training={"processes": 2})
    assert workshop.run(one) == DONE
    with pytest.MonkeyPatch.context() as patch:
        for name, value in workshop.environment.items():
            patch.setenv(name, value)
        patch.chdir(ROOT)
        assert launch.run(two, 2, workshop.command(two, "stop-step-6"), Stop()) == STOPPED
        assert sorted(path.name for path in two.checkpoints.iterdir()) == ["step-00000004", "step-00000006"]
        assert launch.run(two, 2, workshop.command(two), Stop()) == DONE
    assert set(curve(two)) == set(range(1, 13))
    assert max(one.start for one in progress(two)) == 2
    for step, losses in curve(one).items():
        assert curve(two)[step] == pytest.approx(losses, abs=1e-5)
    alone = load_file(one.student / "model.safetensors")
    together = load_file(two.student / "model.safetensors")
    assert alone.keys() == together.keys()
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor, rtol=0, atol=1e-3)


def test_a_process_that_fails_takes_the_others_with_it_and_its_reason_is_the_jobs(tmp_path: Path) -> None:
    place = Place(tmp_path)
    code = (
        "import os, sys, time; from pathlib import Path; from services.distiller.place import Place;"
        "from services.distiller.trainer.launch import failure_of;"
        f"rank = int(os.environ['RANK']); place = failure_of(Place(Path({str(tmp_path)!r})), rank);"
        "rank or time.sleep(600); place.write_failure('NOT_FINITE', 'lower it'); sys.exit(1)"
    )
    assert launch.run(place, 2, [sys.executable, "-c", code], Stop()) == FAILED
    failure = place.read_failure()
    assert failure is not None
    assert (failure.reason, failure.message) == ("NOT_FINITE", "lower it")


def test_a_process_that_was_killed_fails_no_job_which_is_started_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    code = "import os, time; time.sleep(600) if os.environ['RANK'] == '0' else os.kill(os.getpid(), 9)"
    status = launch.run(place, 2, [sys.executable, "-c", code], Stop())
    assert place.read_failure() is None
    assert isinstance(outcome(place, status, told=False, start=1, models=tmp_path), Die)


def test_the_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    child = (
        "from services.distiller.trainer.launch import end_with_parent; import os, time;"
        "end_with_parent(); os.write(1, b'up\\n'); time.sleep(600)"
    )
    code = (
        "import sys; from pathlib import Path; from services.distiller.place import Place;"
        "from services.distiller.trainer.launch import run; from services.distiller.trainer.stop import Stop;"
        f"run(Place(Path({str(tmp_path)!r})), 2, [sys.executable, '-c', {child!r}], Stop())"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert parent.stdout is not None
    try:
        assert [parent.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    finally:
        parent.kill()
        parent.wait()
    assert parent.stdout.read() == ""  # it ends when the last of those that could write is gone
    parent.stdout.close()


class StopsAtTheFirstStep(StopsAfter):
    """Asks to stop once the teacher's logits are stored."""

    @property
    def requested(self) -> bool:  # type: ignore[override]
        return (self._place.taught / "complete.json").exists()


@pytest.mark.parametrize("stop", [StopsAfter, StopsAtTheFirstStep])
def test_data_that_changed_meanwhile_is_refused(workshop: Workshop, stop: type[StopsAfter]) -> None:
    place = workshop.job(objective={"teacher_top_k": 8})
    assert workshop.run(place, stop(place, 2)) == STOPPED
    assert place.checkpoints.exists() == (stop is StopsAfter)
    tiny.write(workshop.root / "data" / "c.jsonl", tiny.conversations(61))
    assert workshop.run(place) == FAILED
    failure = place.read_failure()
    assert failure is not None
    assert failure.reason == "DATA_CHANGED"
    assert "put the file back" in failure.message


def test_another_teacher_in_the_same_place_is_refused_and_the_old_one_goes_on(workshop: Workshop) -> None:
    place = workshop.job()
    assert workshop.run(place, StopsAfter(place, 2)) == STOPPED
    teacher, old = workshop.root / "models" / "tiny", workshop.root / "models" / "old"
    teacher.rename(old)
    tiny.save(teacher, seed=5)
    assert workshop.run(place) == FAILED
    failure = place.read_failure()
    assert failure is not None and failure.reason == "TEACHER_CHANGED"
    shutil.rmtree(teacher)
    shutil.copytree(old, teacher)  # with another time of its files
    assert workshop.run(place) == DONE


def test_a_teacher_that_writes_what_it_knows_is_stopped_with_what_it_wrote(workshop: Workshop) -> None:
    place = workshop.job(objective={"teacher_top_k": 8})

    class StopsWhileTeaching(StopsAfter):
        @property
        def requested(self) -> bool:  # type: ignore[override]
            return any(one.phase == DistillPhase.DISTILL_PHASE_TEACH and one.step for one in progress(place))

    assert workshop.run(place, StopsWhileTeaching(place, 2)) == STOPPED
    assert list(place.taught.glob("*.safetensors")), "it is on the disk"
    assert workshop.run(place) == DONE
