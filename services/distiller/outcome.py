"""What became of a trainer, read from its exit code and from what it left in the job's directory."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from services.common.int8.notes import Damaged, read_notes
from services.distiller.log import last_lines
from services.distiller.machine import Die, Event, Fail, Failure, Mark, Succeed, Yield
from services.distiller.place import DISK_FULL, DONE, FULL, STOPPED, Place
from services.distiller.progress import newest

STUDENTS = "students"  # under the model root
INT8 = "-int8"  # behind the job's id: the student's INT8 form
_MOST_FIGURES = 100


def outcome(place: Place, code: int, told: bool, start: int, models: Path) -> Event:
    """What the job goes through now. A student that is done is put under the model root, where workers find it.

    Args:
        code: its exit code, or minus the signal that ended it. told: it had been asked to end.
        start: its number. models: the model root.
    """
    if code == DONE and place.student.is_dir() and (place.report / "report.json").is_file():
        return _succeeded(place, start, models)
    said = place.read_failure()
    if code and said and said.reason:
        return Fail(start, Failure(said.reason, said.message, last_lines(place.log)))
    if code == FULL:
        return Fail(start, Failure(*DISK_FULL, last_lines(place.log)))
    if told:
        return Yield(start)
    number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    if number or code == STOPPED:
        return Die(start, mark(place), Failure(*_by_signal(number or signal.SIGTERM), last_lines(place.log)))
    what = f"with exit code {code} and gave no reason" if code else "without a student and a report"
    message = f"the trainer ended {what}; its last lines say more"
    return Fail(start, Failure("TRAINER_DIED", message, last_lines(place.log)))


def mark(place: Place) -> Mark:
    """How far the job is."""
    names = [each.name for each in place.checkpoints.iterdir()] if place.checkpoints.is_dir() else []
    whole = [name for name in names if not name.endswith(".new")]
    progress = newest(place)
    phase, step = (int(progress.phase), progress.step) if progress else (0, 0)
    return Mark(max(whole, default=""), phase, step)


def figures(place: Place) -> tuple[tuple[str, float], ...]:
    """The main figures of the report: those numbers under "figures" that are finite."""
    try:
        found = json.loads((place.report / "report.json").read_bytes())["figures"].items()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ()
    numbers = [
        (str(name)[:64], float(value))
        for name, value in found
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]
    return tuple(sorted(numbers)[:_MOST_FIGURES])


def publish(student: Path, target: Path) -> None:
    """Put the student there, in one step; what is there already is replaced. Its files are shared where that can be."""
    new, old = _unfinished(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(student, new, copy_function=_link)
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def published(models: Path, job_id: str) -> list[Path]:
    """The directories under the model root that a job may have there, with what a kill can leave while they are put there."""
    targets = [models / STUDENTS / f"{job_id}{form}" for form in ("", INT8)]
    return [path for target in targets for path in (target, *_unfinished(target))]


def _unfinished(target: Path) -> tuple[Path, Path]:
    return target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")


def _succeeded(place: Place, start: int, models: Path) -> Event:
    name = f"{STUDENTS}/{place.root.name}"
    int8 = f"{name}{INT8}" if _good_enough(place.student_int8) else ""
    try:
        publish(place.student, models / name)
        if int8:
            publish(place.student_int8, models / int8)
    except OSError as error:
        message = (
            f"the student is done, but cannot be put under the model root ({error.strerror}); mend that and resume"
        )
        return Fail(start, Failure("STUDENT_NOT_PUBLISHED", message, last_lines(place.log)))
    return Succeed(start, name, figures(place), int8)


def _good_enough(student_int8: Path) -> bool:
    """Whether there is an INT8 form that may serve, as its int8.json has it."""
    try:
        return read_notes(student_int8).publish
    except Damaged:
        return False


def _link(source: str, target: str) -> None:
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)


def _by_signal(number: int) -> tuple[str, str]:
    if number == signal.SIGKILL:
        return "TRAINER_KILLED", (
            "the trainer was killed again and again, most likely for want of memory: "
            "take fewer micro_sequences or sequence_tokens, then resume"
        )
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return "TRAINER_DIED", f"the trainer was ended by {name} again and again; its last lines say more"
