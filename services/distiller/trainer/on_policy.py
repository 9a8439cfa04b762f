"""On-policy: the student writes the answers itself, and learns what the teacher makes of them.

Source: Agarwal et al. 2024, GKD.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from services.distiller.data.encode import MASKED
from services.distiller.data.packing import Packed
from services.distiller.generate import generate


def drawn(step: int, seed: int, share: float) -> bool:
    """Whether a step is on-policy; the same in every run of the job."""
    return bool(np.random.default_rng([seed, step]).random() < share)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
def rewritten(sequence: Packed, student: Any, ends: Sequence[int], padding: int) -> Packed:
    """The sequence with each document's last answer sampled from the student, in the room of the old one.

    A document keeps all before its last run of scored tokens, earlier answers scored as they are; where the new answer is
    shorter, padding follows. All of it is scored, with the token that ends it. One that begins with what is scored, as a text
    does, asks nothing and stays as it is.
    """
    ids, labels = list(sequence.ids), list(sequence.labels)
    prompts = []
    for _, start, length in sequence.slots:
        first = _last_answer(labels[start : start + length])
        if first > 1:  # the first token of a document is never scored
            prompts.append((start, start + first, start + length))
    if not prompts:
        return sequence
    answers = _sampled(
        [ids[start:first] for start, first, _ in prompts],
        max(end - first for _, first, end in prompts),
        *(student, ends, padding),
    )
    for (_, first, end), answer in zip(prompts, answers, strict=True):
        room = end - first
        kept = answer[:room]
        ids[first:end] = kept + [padding] * (room - len(kept))
        labels[first:end] = kept + [MASKED] * (room - len(kept))
    return Packed(tuple(ids), tuple(labels), sequence.positions, sequence.slots)


def _sampled(prompts: list[list[int]], tokens: int, student: Any, ends: Sequence[int], padding: int) -> list[list[int]]:
    """An answer to each prompt: at most so many tokens, up to the one that ends it; drawn at temperature 1."""
    student.eval()
    try:
        made = generate(student, prompts, tokens, ends, padding, sample=True)
    finally:
        student.train()
    return [_until_end(answer, ends) for answer in made]


def _last_answer(labels: Sequence[int]) -> int:
    """Where the last run of scored tokens begins."""
    end = max(place for place, label in enumerate(labels) if label != MASKED)
    return next((place + 1 for place in range(end, -1, -1) if labels[place] == MASKED), 0)


def _until_end(answer: list[int], ends: Sequence[int]) -> list[int]:
    for place, token in enumerate(answer):
        if token in ends:
            return answer[: place + 1]
    return answer
