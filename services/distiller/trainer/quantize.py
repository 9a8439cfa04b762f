"""The student in 8 bits, where that was asked for: quantised, measured, repaired, written."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from ladr.v1.distiller_pb2 import DistillPhase
from services.common.int8.form import read, write
from services.common.int8.notes import FILE, Kind, Notes, Step, is_there, read_notes
from services.distiller.data.packing import Packed
from services.distiller.int8.dialogues import Dialogues, share_out
from services.distiller.int8.repair import Material, Result, Told, quantise
from services.distiller.objective.batch import Batch
from services.distiller.place import Place
from services.distiller.trainer import models
from services.distiller.trainer.batches import batch, chunks
from services.distiller.trainer.card import complete, whole
from services.distiller.trainer.directory import new_directory
from services.distiller.trainer.job import Job
from services.distiller.trainer.loading import dtype
from services.distiller.trainer.measuring import let_go

log = logging.getLogger(__name__)


def quantize(job: Job) -> None:
    """Write `student-int8/`; what an earlier start has written stays, unless it is damaged. The first process does it alone.

    Raises: Stopped: between two pieces of work; it begins anew then.
    """
    spec = job.spec.int8
    if spec.kind == "none":
        return
    job.teacher = job.student = None
    let_go(job.device)
    total = 2 + len(spec.repairs)
    job.meter.begin(DistillPhase.DISTILL_PHASE_QUANTIZE, total)
    if job.ranks.first and not whole(job.place.student_int8):
        shutil.rmtree(job.place.student_int8, ignore_errors=True)
        (job.place.report / "report.json").unlink(missing_ok=True)  # it speaks of this form
    job.ranks.wait()  # the others wait for what is whole
    if job.ranks.first and not job.place.student_int8.is_dir():
        _write(job)
    job.wait_for(job.place.student_int8)
    job.ranks.wait()
    job.meter.step(total, 0, {}, _figures(total, read_notes(job.place.student_int8).kl))


def with_int8(report: dict[str, Any], place: Place) -> dict[str, Any]:
    """A report with what became of the student in 8 bits, if there is one."""
    if not is_there(place.student_int8):
        return report
    notes = read_notes(place.student_int8)
    int8 = notes.model_dump(mode="json", exclude={"format", "layers", "rank"})
    return {**report, "figures": {**report["figures"], **notes.figures()}, "int8": int8}


def _write(job: Job) -> None:
    spec = job.spec.int8
    reference = models.weights(str(job.place.student), "float32").eval().requires_grad_(False).to(job.device)
    dialogues = share_out(job.reader, spec.dialogues, job.spec.training.seed, job.padding)
    log.info("calibrating on %d dialogues, measuring on %d others", dialogues.fitted, dialogues.kept_apart)
    material = Material(
        _batches(job, dialogues.probe),
        [batch([one], job.device) for one in dialogues.fit],
        _batches(job, dialogues.measured),
    )
    steps: list[Step] = []

    def step(one: Step) -> None:
        steps.append(one)
        log.info("int8, %s: KL %.4f; %s", one.step, one.kl, one.said)
        job.stop.check()
        job.meter.step(len(steps), 0, {"kl": one.kl}, _figures(len(steps), one.kl))

    def train(kl: float, tokens: int) -> None:
        job.stop.check()
        job.meter.step(len(steps), tokens, {"kl": kl}, _figures(len(steps), steps[-1].kl))

    told = Told(job.stop.check, step, train)
    kind: Kind = "weight_only" if spec.kind == "weight_only" else "w8a8"
    result = quantise(reference, kind, spec, material, job.vocabulary, job.spec.evaluation.tokens, told)
    with new_directory(job.place.student_int8) as new:
        notes = _notes(job, kind, result, dialogues)
        write(result.quantised.model, notes, new, dtype(job))
        job.tokenizer.save_pretrained(new)
        began_s = time.monotonic()
        kl = result.measured.kl(read(new, torch.float32, job.device))
        sizes = {"bytes_before": _bytes(job.place.student), "bytes_after": _bytes(new)}
        took_s = time.monotonic() - began_s
        step(Step(step="saved", kl=kl, seconds=took_s, bytes=sizes["bytes_after"], said="as it is read back"))
        verdict = {"publish": not (why := _why(job, kl)), "why": why}
        update = {"steps": tuple(steps), "kl": kl, **sizes, **verdict}
        (new / FILE).write_text(notes.model_copy(update=update).model_dump_json(indent=1))
        complete(new, job)


def _notes(job: Job, kind: Kind, result: Result, dialogues: Dialogues) -> Notes:
    quantised = result.quantised
    return Notes(
        kind=kind,
        layers=tuple(quantised.layers),
        kept=tuple(name for name in quantised.names if name in quantised.kept),
        rank={name: one.down.shape[0] for name, one in quantised.layers.items() if one.down is not None},
        kl_before=result.steps[0].kl,
        threshold=job.spec.int8.threshold,
        goal=job.spec.int8.goal,
        dialogues=dialogues.fitted,
        measured_dialogues=dialogues.kept_apart,
        measured_tokens=result.measured.tokens,
    )


def _why(job: Job, kl: float) -> str:
    """Why it may not serve; empty if it may."""
    spec = job.spec.int8
    if kl <= spec.threshold or spec.publish_above:
        return ""
    return (
        f"its KL of {kl:.4f} is above int8.threshold, {spec.threshold:g}: allow more of int8.repairs,"
        " take the kind weight_only, or set int8.publish_above"
    )


def _batches(job: Job, sequences: list[Packed]) -> list[Batch]:
    return [batch(some, job.device) for some in chunks(sequences, job.spec.training.micro_sequences)]


def _bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def _figures(step: int, kl: float) -> dict[str, float]:
    return {"int8_step": float(step), "int8_kl": kl}
