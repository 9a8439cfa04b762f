"""What teacher and student say to the questions of the report, one model at a time; the untrained student fights, too."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from services.distiller.data.encode import TEMPLATE_ERRORS
from services.distiller.data.pairs import Pair, read_pairs, split
from services.distiller.report.answers import Answer, answers
from services.distiller.report.questions import Question, ask, held_out
from services.distiller.trainer import models
from services.distiller.trainer.loading import dtype
from services.distiller.trainer.measuring import Measuring, Name

T = TypeVar("T")
log = logging.getLogger(__name__)
BATCH = 8
"""Questions that are answered together."""
FIGHTERS: tuple[Name, ...] = ("teacher", "student", "untrained")


@dataclass(frozen=True)
class Asked:
    """What is asked: questions for battles, and pairs for refusals (harmful and harmless prompt of each, in turn)."""

    battles: list[Question]
    pairs: list[Pair]
    prompts: list[Question]
    answer_tokens: int

    @property
    def steps(self) -> int:
        """Batches of all answers."""
        return len(FIGHTERS) * len(cut(self.battles)) + 2 * len(cut(self.prompts))


@dataclass(frozen=True)
class Said:
    """The answers by model, in the order of the questions."""

    battles: dict[str, list[Answer]]
    prompts: dict[str, list[Answer]]


def asked(m: Measuring) -> Asked:
    """The questions: always the same ones for this job, and none that leaves no room for an answer. A teacher that does not
    chat has none."""
    job, wanted = m.job, m.job.spec.evaluation
    if not job.tokenizer.chat_template:
        log.info("no battles and no refusals: the teacher has no chat template to ask questions with")
        return Asked([], [], [], wanted.answer_tokens)
    context = getattr(models.config(m.where("teacher")), "max_position_embeddings", None) or 1 << 20
    answer_tokens = min(wanted.answer_tokens, context // 2)
    longest = min(job.spec.data.sequence_tokens, context - answer_tokens)
    pairs = split(read_pairs())[1][: wanted.refusal_pairs]
    try:
        prompts = [ask(prompt, job.tokenizer) for pair in pairs for prompt in (pair.harmful, pair.harmless)]
    except TEMPLATE_ERRORS as error:
        log.warning("no refusals: the chat template does not take a question alone: %s", error)
        pairs, prompts = [], []
    battles = held_out(job.reader.corpus, job.tokenizer, wanted.battles, job.spec.training.seed, longest)
    return Asked(battles, pairs, prompts, answer_tokens)


def said(m: Measuring, questions: Asked) -> Said:
    """Have all models answer."""
    found = Said({}, {})
    for name in FIGHTERS:
        parts = [(f"answers-{name}", cut(questions.battles), found.battles)]
        if name != "untrained":
            parts.append((f"refusals-{name}", cut(questions.prompts), found.prompts))
        parts = [(part, batches, kept) for part, batches, kept in parts if batches]

        def answer(model: Any, name: str = name, parts: Any = parts) -> None:
            for part, batches, kept in parts:
                rows = m.each(part, batches, lambda batch: _answers(m, model, batch, questions.answer_tokens))
                kept[name] = [Answer(**row) for row in rows]

        if all(m.notes.complete(part, len(batches)) for part, batches, _ in parts):
            answer(None)
        else:
            m.using(name, answer, dtype(m.job))
    return found


def cut(values: Sequence[T]) -> list[Sequence[T]]:
    return [values[start : start + BATCH] for start in range(0, len(values), BATCH)]


def _answers(m: Measuring, model: Any, batch: Sequence[Question], tokens: int) -> list[dict[str, Any]]:
    job = m.job
    made = answers(model, batch, job.tokenizer, job.ends, job.padding, tokens, job.stop.check)
    return [one.row() for one in made]
