"""The teacher runs once over all that is trained on, and what it thinks most likely is stored."""

from __future__ import annotations

import torch

from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.data.packing import Packed
from services.distiller.objective.batch import IGNORE, Batch
from services.distiller.objective.distillation import Distillation
from services.distiller.trainer.batches import batch
from services.distiller.trainer.job import Job
from services.distiller.trainer.loading import dtype
from services.distiller.trainer.prepare_text import stream
from services.distiller.trainer.shelf import Shelf
from services.distiller.trainer.stop import Stopped


def teach(job: Job) -> None:
    """Store the top k for the documents of all steps, if there are any and the objective asks for it; then let go of a teacher
    that is not needed any more."""
    if not (job.spec.objective.teacher_top_k and job.spec.training.steps):
        return
    if not Shelf.complete(job.place.taught):
        _store(job)
    if not job.teacher_runs:
        job.teacher = None


def _store(job: Job) -> None:
    training, k = job.spec.training, job.spec.objective.teacher_top_k
    objective = job.spec.objective.model_copy(update={"attention_weight": 0.0, "hidden_weight": 0.0})
    knowing = Distillation(job.student, job.teacher, objective, vocabulary=job.vocabulary)
    job.ranks.shard(job.teacher, job.device, dtype(job))
    shelf = Shelf(job.place.taught, str(job.ranks.rank))
    job.ranks.wait()  # nobody writes before all have seen what is there
    done = set(shelf.keys())
    source = stream(job)
    group = training.micro_sequences * job.ranks.count
    groups = training.steps * training.batch_sequences // group
    job.meter.begin(DistillPhase.DISTILL_PHASE_TEACH, groups)
    for number in range(groups):
        sequences = [next(source) for _ in range(group)]
        new = {key for one in sequences for key, _, _ in one.slots} - done
        done |= new
        if new:
            own = sequences[job.ranks.rank :: job.ranks.count]
            with torch.autocast(job.device.split(":")[0], torch.bfloat16, enabled=dtype(job) == torch.bfloat16):
                _put(shelf, knowing, own, new, k, job.device)
        job.meter.step(number + 1, sum(one.length for one in sequences) if new else 0, {}, {})
        if job.ranks.any(job.stop.requested, job.device):
            shelf.flush()
            raise Stopped
        if source.epoch > 0 and not {tuple(key) for key in source.position["waiting"]} - done:
            break  # it has been once round: nothing new can come
    shelf.flush()
    job.ranks.wait()
    if job.ranks.first:
        shelf.finish()
    job.ranks.wait()


def _put(
    shelf: Shelf, knowing: Distillation, own: list[Packed], new: set[tuple[int, int]], k: int, device: str
) -> None:
    tensors = batch(own, device)
    ids, values = knowing.teacher_top_k(tensors, k)
    scored = tensors.targets() != IGNORE
    for row, sequence in enumerate(own):
        for key, start, length in sequence.slots:
            if key in new:
                new.discard(key)  # the same document may come twice
                here = scored[row, start : start + length]
                shelf.put(key, ids[row, start : start + length][here], values[row, start : start + length][here])


def taught(sequences: list[Packed], shelf: Shelf, k: int, device: str) -> Batch:
    """A batch with what the teacher thought of it."""
    tensors = batch(sequences)
    scored = tensors.targets() != IGNORE
    ids = torch.zeros(*scored.shape, k, dtype=torch.int64)
    values = torch.zeros(*scored.shape, k)
    for row, sequence in enumerate(sequences):
        for key, start, length in sequence.slots:
            place = start + scored[row, start : start + length].nonzero()[:, 0]
            ids[row, place], values[row, place] = shelf.get(key)
    return Batch(tensors.input_ids, tensors.labels, tensors.position_ids, ids, values).to(device)
