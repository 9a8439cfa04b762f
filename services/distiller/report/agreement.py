"""How far two models agree on the same text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from services.distiller.objective.batch import IGNORE, Batch
from services.distiller.objective.forward import run

CHUNK = 256
"""Scored tokens whose logits are looked at together."""


@dataclass
class Agreement:
    """Sums over scored tokens; the properties are means of one token.

    Attributes: kl_sum: KL(teacher ‖ student) in nats, at temperature 1. same: tokens at which both hold the same one for the
        likeliest. student_nats, teacher_nats: negative log-likelihood of the text.
    """

    tokens: int = 0
    same: int = 0
    kl_sum: float = 0.0
    student_nats: float = 0.0
    teacher_nats: float = 0.0

    @property
    def kl(self) -> float:
        return self.kl_sum / self.tokens

    @property
    def top1(self) -> float:
        return self.same / self.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.student_nats / self.tokens, 700.0))

    @property
    def teacher_perplexity(self) -> float:
        return math.exp(min(self.teacher_nats / self.tokens, 700.0))

    def add(self, student: Any, teacher: Any, targets: Any) -> None:
        """Logits [tokens, vocabulary] of both, and the tokens [tokens] that the text goes on with."""
        one, other = student.float().log_softmax(-1), teacher.float().log_softmax(-1)
        self.tokens += len(targets)
        self.same += int((one.argmax(-1) == other.argmax(-1)).sum())
        self.kl_sum += float((other.exp() * (other - one)).sum())
        self.student_nats -= float(one.gather(1, targets[:, None]).sum())
        self.teacher_nats -= float(other.gather(1, targets[:, None]).sum())


@torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
def measure(student: Any, teacher: Any, batches: Iterable[Batch], vocabulary: int, most_tokens: int) -> Agreement:
    """Both models on packed sequences, until so many tokens were scored.

    Args: vocabulary: how many logits are compared.
    """
    found = Agreement()
    for batch in batches:
        targets = batch.targets()
        places = (targets != IGNORE).nonzero()[: most_tokens - found.tokens]
        states = [run(model, batch)[places[:, 0], places[:, 1]] for model in (student, teacher)]
        wanted = targets[places[:, 0], places[:, 1]]
        for start in range(0, len(places), CHUNK):
            part = slice(start, start + CHUNK)
            one, other = (
                model.get_output_embeddings()(hidden[part])[:, :vocabulary]
                for model, hidden in zip((student, teacher), states, strict=True)
            )
            found.add(one, other, wanted[part])
        if found.tokens >= most_tokens:
            break
    return found
