"""What is read of a job's directory: its log, its progress, its figures; and a student put where workers find it."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladr.v1.distiller_pb2 import DistillProgress
from services.distiller import outcome as outcomes
from services.distiller import progress
from services.distiller.log import keep_small, last_lines
from services.distiller.machine import Die, Fail, Succeed, Yield
from services.distiller.outcome import figures, outcome, publish, published
from services.distiller.place import FULL, STOPPED, Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "job").mkdir()
    return Place(tmp_path / "job")


def test_a_log_is_cut_while_it_grows_and_its_last_lines_stay(place: Place) -> None:
    for n in range(3000):
        with place.log.open("ab") as file:
            file.write(f"line {n}\n".encode())
        keep_small(place.log, 1000)
    size = sum(file.stat().st_size for file in place.root.iterdir())
    assert size < 1000 + 500 + 20
    assert last_lines(place.log) == tuple(f"line {n}" for n in range(2950, 3000))


def test_what_moves_a_terminal_is_escaped_in_the_last_lines(place: Place) -> None:
    place.log.write_bytes(b"\x1b[31mred\tand\x07 \xff more" + b"y" * 1000 + b"\n\n50%\r100%\n")
    first, *rest = last_lines(place.log)
    assert first.startswith("\\x1b[31mred and\\x07")
    assert len(first) < 600
    assert rest == ["50%", "100%"]


def add(place: Place, data: bytes) -> None:
    with place.progress.open("ab") as file:
        file.write(data)


@given(st.lists(st.sampled_from(["whole", "torn"]), max_size=20), st.integers(0, 20), st.booleans())
def test_progress_is_read_from_the_place_that_was_asked_for(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], last: int, open_end: bool
) -> None:
    place = Place(tmp_path_factory.mktemp("job"))
    for step, kind in enumerate(lines, 1):
        if kind == "whole":
            place.add_progress(DistillProgress(step=step))
        else:
            add(place, b'{"step": \n')
    if open_end:
        add(place, b'{"step": 99')
    whole = [step for step, kind in enumerate(lines, 1) if kind == "whole"]
    newest = progress.newest(place)
    assert (newest.step if newest else None) == (whole[-1] if whole else None)
    assert [one.step for one, _ in place.read_progress(progress.end(place))] == []
    wanted = [step for step in whole if step > len(lines) - last]
    assert [one.step for one, _ in place.read_progress(progress.back(place, last))] == wanted


def test_only_finite_numbers_are_figures(place: Place) -> None:
    assert figures(place) == ()
    place.report.mkdir()
    for text in ("", "[]", '{"figures": 5}', "{}", "\xff"):
        (place.report / "report.json").write_text(text)
        assert figures(place) == ()
    found = {"kl": 0.5, "steps": 3, "text": "x", "yes": True, "nan": float("nan")}
    (place.report / "report.json").write_text(json.dumps({"figures": found}))
    assert figures(place) == (("kl", 0.5), ("steps", 3.0))


def test_a_student_is_published_whole_and_again(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.student.mkdir()
    (place.student / "weights").write_bytes(b"one")
    target = tmp_path / "models" / "students" / "job"
    publish(place.student, target)
    assert (target / "weights").stat().st_ino == (place.student / "weights").stat().st_ino
    (place.student / "weights").unlink()
    (place.student / "weights").write_bytes(b"two")

    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(outcomes.os, "link", no_link)
    publish(place.student, target)
    assert (target / "weights").read_bytes() == b"two"
    assert [each.name for each in target.parent.iterdir()] == ["job"]


def test_what_a_kill_leaves_of_a_student_is_known(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.student.mkdir()
    (place.student / "weights").write_bytes(b"one")
    models = tmp_path / "models"
    target, *_ = published(models, "job")
    publish(place.student, target)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("link", "rename"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(outcomes.os if step == "link" else Path, step, killed)
            publish(place.student, target)
        assert set(target.parent.iterdir()) <= set(published(models, "job"))
        assert len(list(target.parent.iterdir())) == 2


def test_an_exit_is_what_the_directory_says_of_it(place: Place, tmp_path: Path) -> None:
    def of(code: int, told: bool = False) -> object:
        return outcome(place, code, told, 1, tmp_path / "models")

    def failed(code: int) -> str:
        event = of(code)
        assert isinstance(event, Fail)
        return event.failure.reason

    assert failed(0) == "TRAINER_DIED"
    assert failed(1) == "TRAINER_DIED"
    assert failed(FULL) == "DISK_FULL"
    assert isinstance(of(FULL, told=True), Fail)
    for code in (-9, 137, -15, STOPPED):
        event = of(code)
        assert isinstance(event, Die), code
        assert ("memory" in event.failure.message) == (code in (-9, 137))
        assert of(code, told=True) == Yield(1)
    place.write_failure("OUT_OF_MEMORY", "take less")
    assert failed(1) == "OUT_OF_MEMORY"
    place.student.mkdir()
    place.report.mkdir()
    (place.report / "report.json").write_text('{"figures": {"kl": 1}}')
    assert of(0, told=True) == Succeed(1, "students/job", (("kl", 1.0),))
    (tmp_path / "models" / "students" / "job").rmdir()
    (tmp_path / "models" / "students").rmdir()
    (tmp_path / "models" / "students").write_text("in the way")
    assert failed(0) == "STUDENT_NOT_PUBLISHED"
