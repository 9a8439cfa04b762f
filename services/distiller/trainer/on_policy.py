"""On-policy: the student writes the answers itself, and learns what the teacher makes of them.

Source: Agarwal et al. 2024, GKD.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from services.distiller.data.encode import MASKED
from services.distiller.data.packing import Packed


def drawn(step: int, seed: int, share: float) -> bool:
    """Whether a step is on-policy; the same in every run of the job."""
    return bool(np.random.default_rng([seed, step]).random() < share)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
def rewritten(sequence: Packed, student: Any, ends: Sequence[int], padding: int) -> Packed:
    """The sequence with each document's answer sampled from the student, in the room of the old one.

    A document keeps all before its first scored token; where the new answer is shorter, padding follows. All of the answer is
    scored, with the token that ends it.
    """
    ids, labels = list(sequence.ids), list(sequence.labels)
    prompts = []
    for _, start, length in sequence.slots:
        first = next(place for place in range(start, start + length) if labels[place] != MASKED)
        prompts.append((start, first, start + length))
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
    width = max(map(len, prompts))
    ids = torch.tensor([[padding] * (width - len(prompt)) + prompt for prompt in prompts], device=student.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=student.device)
    how = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=tokens,
        eos_token_id=list(ends),
        pad_token_id=padding,
    )
    student.eval()
    made = student.generate(input_ids=ids, attention_mask=mask, generation_config=how)[:, width:].tolist()
    student.train()
    return [_until_end(answer, ends) for answer in made]


def _until_end(answer: list[int], ends: Sequence[int]) -> list[int]:
    for place, token in enumerate(answer):
        if token in ends:
            return answer[: place + 1]
    return answer
