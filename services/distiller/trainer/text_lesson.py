"""Steps on packed sequences of text."""

from __future__ import annotations

from collections import Counter
from typing import Any

from services.distiller.data.encode import Encoder
from services.distiller.data.packing import Packed
from services.distiller.data.pairs import documents, drawn, read_pairs, split
from services.distiller.data.stream import Stream
from services.distiller.objective.batch import Batch
from services.distiller.objective.distillation import Distillation
from services.distiller.trainer import on_policy
from services.distiller.trainer.batches import batch, chunks, rows
from services.distiller.trainer.job import Job
from services.distiller.trainer.lesson import autocast, spread, summed
from services.distiller.trainer.prepare_text import stream
from services.distiller.trainer.shelf import Shelf
from services.distiller.trainer.teach import taught


class TextLesson:
    """See `lesson.Lesson`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._training, self._objective = job.spec.training, job.spec.objective
        teacher = job.teacher if job.teacher_runs else None
        self.module = Distillation(
            job.student, teacher, self._objective, job.layer_map, heads=job.heads, vocabulary=job.vocabulary
        )
        spread(job, self.module, teacher)
        self._stream: Stream = stream(job)
        self._pairs = split(read_pairs())[0] if self._objective.refusal_weight else []
        self._encoder = Encoder(job.tokenizer, job.ends)
        self._shelf = Shelf(job.place.taught) if self._objective.teacher_top_k else None

    @property
    def position(self) -> dict[str, Any]:
        return self._stream.position

    def restore(self, position: dict[str, Any]) -> None:
        self._stream.restore(position)

    def take(self, step: int) -> tuple[int, dict[str, float]]:
        job = self._job
        sequences = [next(self._stream) for _ in range(self._training.batch_sequences)]
        own_answers = on_policy.drawn(step, self._training.seed, self._objective.on_policy)
        if own_answers:
            sequences = [on_policy.rewritten(one, job.student, job.ends, job.padding) for one in sequences]
        # the student's own words are no text to learn: only the teacher judges them
        update = {"task_weight": 0.0} if own_answers else {}
        self.module.objective = self._objective.model_copy(update=update)
        return sum(one.length for one in sequences), self._gradients(sequences, step)

    def _gradients(self, sequences: list[Packed], step: int) -> dict[str, float]:
        """Sum up this process's part of the step's gradient; the losses of the whole step, by part.

        Each token counts the same, whatever the micro-batch or the process that it is in.
        """
        ranks = self._job.ranks
        scored = sum(one.scored for one in sequences)
        parts: Counter[str] = Counter()
        for some in chunks(ranks.share(sequences), self._training.micro_sequences):
            with autocast(self._job):
                losses = self.module(self._batch(some), scored)
            (losses.total * ranks.count).backward()  # gradients are averaged over processes
            parts.update(losses.parts)
        if self._pairs:
            parts.update(self._balance(step))
        return summed(self._job, parts)

    def _balance(self, step: int) -> dict[str, Any]:
        """Add the gradient of the refusal balance; all processes take the same pairs, and give the loss in equal shares."""
        training = self._training
        some = drawn(self._pairs, max(1, training.micro_sequences // 2), training.seed, step)
        both = [one for pair in some for one in documents(pair, self._encoder)]
        with autocast(self._job):
            losses = self.module(rows(both, self._job.padding, self._job.device))
        losses.total.backward()
        return {name: part / self._job.ranks.count for name, part in losses.parts.items()}

    def _batch(self, sequences: list[Packed]) -> Batch:
        if self._shelf is None:
            return batch(sequences, self._job.device)
        return taught(sequences, self._shelf, self._objective.teacher_top_k, self._job.device)
