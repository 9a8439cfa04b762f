"""A job's directory: what the service and its trainer tell each other, all of it files that survive both.

spec.json        the whole job (written by the service before the first start)
progress.jsonl   a `DistillProgress` in each line (written by the trainer, read by the service)
trainer.log      what the trainer prints
initial/         the student before its first step, with student.json: what it was made of
taught/          the teacher's most likely tokens, where the objective wants them stored
checkpoints/     the newest ones
answered/        the records as a model behind the router answered them, where that was asked for
student/         the student: safetensors, tokenizer, model card, hashes
student-int8/    the same in 8 bits, where that was asked for, with int8.json: its kind, its layers, its KL step by step
report/          report.json, report.html and its pictures
failure.json     why the trainer gave up, if it knows (a `DistillError`)

The trainer's exit status says how it ended: DONE, FAILED (see failure.json), FULL: the disk is, so that it could not even write
failure.json, or STOPPED: it was told to stop (SIGTERM), wrote a checkpoint, and goes on from there when it is started again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import MessageToJson, Parse, ParseError

from ladr.v1.distiller_pb2 import DistillError, DistillProgress
from services.distiller.spec import Spec

DONE, FAILED, FULL, STOPPED = 0, 1, 74, 75
DISK_FULL = ("DISK_FULL", "the disk of distiller.state is full: make room, then resume the job")
START = "LADR_DISTILL_START"  # environment of a trainer: how often one was started for its job, this time included
_TORN = (ParseError, UnicodeDecodeError)


@dataclass(frozen=True)
class Place:
    """One job's directory."""

    root: Path

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def progress(self) -> Path:
        return self.root / "progress.jsonl"

    @property
    def log(self) -> Path:
        return self.root / "trainer.log"

    @property
    def initial(self) -> Path:
        return self.root / "initial"

    @property
    def taught(self) -> Path:
        return self.root / "taught"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def student(self) -> Path:
        return self.root / "student"

    @property
    def answered(self) -> Path:
        return self.root / "answered" / "records.jsonl"

    @property
    def student_int8(self) -> Path:
        return self.root / "student-int8"

    @property
    def report(self) -> Path:
        return self.root / "report"

    @property
    def failure(self) -> Path:
        return self.root / "failure.json"

    def read_spec(self) -> Spec:
        return Spec.model_validate_json(self.spec.read_bytes())

    def write_spec(self, spec: Spec) -> None:
        write_whole(self.spec, spec.model_dump_json(indent=1).encode())

    def read_failure(self) -> DistillError | None:
        """What the trainer said of its end. None: it said nothing."""
        try:
            return Parse(self.failure.read_bytes(), DistillError())
        except (OSError, *_TORN):
            return None

    def write_failure(self, reason: str, message: str) -> None:
        write_whole(self.failure, MessageToJson(DistillError(reason=reason, message=message)).encode())

    def add_progress(self, progress: DistillProgress) -> None:
        """One more line; a line that a kill tore is left behind as a line of its own."""
        line = MessageToJson(progress, indent=None).encode() + b"\n"
        with self.progress.open("ab+") as file:
            if file.tell() and not _ends_whole(file.fileno()):
                line = b"\n" + line
            file.write(line)

    def read_progress(self, offset: int = 0) -> Iterator[tuple[DistillProgress, int]]:
        """The progress from that byte on, each with the offset behind it. A line without its end is not read yet."""
        if not self.progress.exists():
            return
        with self.progress.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                try:
                    yield Parse(line, DistillProgress()), offset
                except _TORN:
                    continue


def disk_full(error: BaseException) -> bool:
    """Whether there was no room to write; safetensors has a text for it, and no number."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "(os error 28)" in str(error)


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` there in one step that a kill or a loss of power cannot tear."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _ends_whole(descriptor: int) -> bool:
    return os.pread(descriptor, 1, os.fstat(descriptor).st_size - 1) == b"\n"
