"""The student as others load it: safetensors, tokenizer with its chat template, card, hashes."""

from __future__ import annotations

import shutil

from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.trainer import card, models
from services.distiller.trainer.directory import new_directory
from services.distiller.trainer.job import Job
from services.distiller.trainer.loading import dtype
from services.distiller.trainer.ranks import whole


def save(job: Job) -> None:
    """Write `student/`, in the type that was computed in; what an earlier start has written stays, unless it is damaged."""
    job.meter.begin(DistillPhase.DISTILL_PHASE_SAVE, 1)
    there = card.whole(job.place.student)
    job.ranks.wait()  # nobody writes before all have looked
    if not there:
        weights = {name: whole(one) for name, one in job.student.named_parameters()}
        if job.ranks.first:
            _write(job, weights)
    job.ranks.wait()
    job.meter.step(1, 0, {}, {})


def _write(job: Job, weights: dict[str, object]) -> None:
    plain = models.weights(str(job.place.initial), "float32")
    missing, unexpected = plain.load_state_dict(weights, strict=False)
    if unexpected or set(missing) & {name for name, _ in plain.named_parameters()}:
        raise RuntimeError(f"the student lost weights on its way: {missing}, {unexpected}")
    plain.to(dtype(job))
    if not job.of_images:
        own = plain.generation_config  # the teacher's: its temperature and penalties are meant for this vocabulary, too
        own.eos_token_id, own.pad_token_id, own.bos_token_id = list(job.ends), job.padding, job.tokenizer.bos_token_id
    shutil.rmtree(job.place.student, ignore_errors=True)
    (job.place.report / "report.json").unlink(missing_ok=True)  # put together anew, it writes its figures on the card
    with new_directory(job.place.student) as new:
        plain.save_pretrained(new)
        job.tokenizer.save_pretrained(new)
        card.complete(new, job)
