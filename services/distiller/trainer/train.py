"""Optimiser steps, from the newest checkpoint to the last step."""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Any

import torch

from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.data.encode import Encoder
from services.distiller.data.packing import Packed
from services.distiller.data.pairs import documents, drawn, read_pairs, split
from services.distiller.data.stream import Stream
from services.distiller.objective.batch import Batch
from services.distiller.objective.distillation import Distillation
from services.distiller.refused import Refused
from services.distiller.trainer import checkpoint, on_policy
from services.distiller.trainer.batches import batch, chunks, rows
from services.distiller.trainer.checkpoint import Progress
from services.distiller.trainer.job import Job
from services.distiller.trainer.memory import give_back
from services.distiller.trainer.prepare import dtype, stream
from services.distiller.trainer.schedule import groups, learning_rate
from services.distiller.trainer.shelf import Shelf
from services.distiller.trainer.stop import Stopped
from services.distiller.trainer.teach import taught

log = logging.getLogger(__name__)


def train(job: Job) -> None:
    """Take the steps that are left, if there are any.

    Raises: Refused: NOT_FINITE, DATA_CHANGED. Stopped: after a checkpoint.
    """
    training = job.spec.training
    if not training.steps:
        return
    run = _Run(job)
    job.meter.begin(DistillPhase.DISTILL_PHASE_TRAIN, training.steps, run.step, run.tokens)
    while run.step < training.steps:
        run.advance()
        stop = job.ranks.any(job.stop.requested, job.device)
        if stop or run.step == training.steps or run.step % training.checkpoint_steps == 0:
            run.save()
        if stop:
            raise Stopped


class _Run:
    """The state of the training: all of it is in a checkpoint, so that a run that was interrupted ends as one that was not."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._training, self._objective = job.spec.training, job.spec.objective
        if self._objective.on_policy and job.ranks.count > 1:
            raise Refused("UNSUPPORTED", "on_policy samples in one process only: set training.processes to 1")
        teacher = job.teacher if job.teacher_runs else None
        self._distillation = Distillation(
            job.student, teacher, self._objective, job.layer_map, vocabulary=job.vocabulary
        )
        self._distillation.projections.to(job.device)
        for model in (job.student, teacher):
            if model is not None:
                job.ranks.shard(model, job.device, dtype(job))
        for projection in self._distillation.projections:
            job.ranks.shard_whole(projection, job.device)
        named = self._distillation.named_parameters()
        self._trained = {name: one for name, one in named if one.requires_grad}
        self._optimizer = torch.optim.AdamW(
            groups(self._trained.values(), self._training.weight_decay), lr=self._training.learning_rate, fused=True
        )
        self._stream: Stream = stream(job)
        self._pairs = split(read_pairs())[0] if self._objective.refusal_weight else []
        self._encoder = Encoder(job.tokenizer, job.ends)
        self._shelf = Shelf(job.place.taught) if self._objective.teacher_top_k else None
        self.step = self.tokens = 0
        self._resume()

    def advance(self) -> None:
        """One step."""
        rate = learning_rate(self.step, self._training)
        sequences = [next(self._stream) for _ in range(self._training.batch_sequences)]
        own_answers = on_policy.drawn(self.step, self._training.seed, self._objective.on_policy)
        if own_answers:
            job = self._job
            sequences = [on_policy.rewritten(one, job.student, job.ends, job.padding) for one in sequences]
        # the student's own words are no text to learn: only the teacher judges them
        update = {"task_weight": 0.0} if own_answers else {}
        self._distillation.objective = self._objective.model_copy(update=update)
        losses = self._gradients(sequences)
        norm = torch.nn.utils.clip_grad_norm_(self._trained.values(), self._training.clip_norm)
        norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if not all(map(math.isfinite, (*losses.values(), norm))):
            raise Refused(
                "NOT_FINITE",
                f"the loss or gradient of step {self.step + 1} is not a finite number: lower training.learning_rate,"
                " or train in float32",
            )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        give_back()
        self.step += 1
        tokens = sum(one.length for one in sequences)
        self.tokens += tokens
        self._job.meter.step(self.step, tokens, losses, {"learning_rate": rate, "gradient_norm": norm})

    def save(self) -> None:
        progress = Progress(self.step, self.tokens, self._job.reader.corpus.digest, self._stream.position)
        checkpoint.save(self._job.place.checkpoints, progress, self._trained, self._optimizer, self._job.ranks)
        self._job.ranks.wait()

    def _resume(self) -> None:
        path = checkpoint.newest(self._job.place.checkpoints)
        if path is None:
            return
        found = checkpoint.load(path, self._trained, self._optimizer)
        if found.digest != self._job.reader.corpus.digest:
            raise Refused(
                "DATA_CHANGED",
                f"the data is not what it was at step {found.step}: put the file back, or begin a new job with the new one",
            )
        self._stream.restore(found.position)
        self.step, self.tokens = found.step, found.tokens
        log.info("going on from step %d", self.step)

    def _gradients(self, sequences: list[Packed]) -> dict[str, float]:
        """Sum up this process's part of the step's gradient; the losses of the whole step, by part.

        Each token counts the same, whatever the micro-batch or the process that it is in.
        """
        ranks = self._job.ranks
        scored = sum(one.scored for one in sequences)
        share = len(sequences) // ranks.count
        own = sequences[ranks.rank * share : (ranks.rank + 1) * share]
        parts: Counter[str] = Counter()
        for some in chunks(own, self._training.micro_sequences):
            with self._autocast():
                losses = self._distillation(self._batch(some), scored)
            (losses.total * ranks.count).backward()  # gradients are averaged over processes
            parts.update(losses.parts)
        if self._pairs:
            parts.update(self._balance())
        summed = ranks.sum(torch.stack([torch.as_tensor(part).float() for part in parts.values()]))
        found = dict(zip(parts, summed.tolist(), strict=True))
        return {"total": sum(found.values()), **found}

    def _balance(self) -> dict[str, Any]:
        """Add the gradient of the refusal balance; all processes take the same pairs, and give the loss in equal shares."""
        training = self._training
        some = drawn(self._pairs, max(1, training.micro_sequences // 2), training.seed, self.step)
        both = [one for pair in some for one in documents(pair, self._encoder)]
        with self._autocast():
            losses = self._distillation(rows(both, self._job.padding, self._job.device))
        losses.total.backward()
        return {name: part / self._job.ranks.count for name, part in losses.parts.items()}

    def _autocast(self) -> Any:
        kind = self._job.device.split(":")[0]
        return torch.autocast(kind, torch.bfloat16, enabled=dtype(self._job) == torch.bfloat16)

    def _batch(self, sequences: list[Packed]) -> Batch:
        if self._shelf is None:
            return batch(sequences, self._job.device)
        return taught(sequences, self._shelf, self._objective.teacher_top_k, self._job.device)
