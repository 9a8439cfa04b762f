"""The tokens of a step, and which of them are scored."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

IGNORE = -100


@dataclass(frozen=True)
class Batch:
    """Packed sequences, all of one length.

    Attributes:
        input_ids: [batch, time], int64.
        labels: [batch, time], unshifted: `input_ids` where the token is to be learned, −100 elsewhere.
        position_ids: [batch, time]; 0 where a document begins. Padding counts as a document of its own.
        teacher_ids: [batch, time, k], or None: the most likely tokens after each position, as `Distillation.teacher_top_k`
            gives them.
        teacher_log_probabilities: [batch, time, k], or None: of those, in nats, at the objective's temperature.
        pairs: rows come as a harmful prompt with its refusal, then a harmless prompt with its answer, and so on (see
            `refusals`).
    """

    input_ids: Any
    labels: Any
    position_ids: Any
    teacher_ids: Any = None
    teacher_log_probabilities: Any = None
    pairs: bool = False

    def targets(self) -> Any:
        """What each position predicts: the next label of the same document, or −100. [batch, time]"""
        targets = torch.full_like(self.labels, IGNORE)
        same = self.position_ids[:, 1:] == self.position_ids[:, :-1] + 1
        targets[:, :-1] = torch.where(same, self.labels[:, 1:], IGNORE)
        return targets

    def real(self) -> Any:
        """Tokens of documents that have a label: not padding. [batch, time]"""
        place = documents(self.position_ids)
        labelled = torch.zeros_like(place).scatter_add_(1, place, (self.labels != IGNORE).to(place.dtype))
        return labelled.gather(1, place) > 0

    def scored(self) -> int:
        """How many positions predict a label. Pairs: how many rows have such a position."""
        scored = self.targets() != IGNORE
        return int((scored.any(1) if self.pairs else scored).sum())

    def to(self, device: Any) -> Batch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Batch(**{name: value.to(device) if torch.is_tensor(value) else value for name, value in values.items()})


def rows(states: Any, real: Any) -> Any:
    """Of states [batch, time, width] the real tokens' [tokens, width]; `real` [batch, time], or None: all are."""
    return states.flatten(0, 1) if real is None else states[real]


def documents(position_ids: Any) -> Any:
    """Which document each token of a row belongs to, from 0. [batch, time]

    A document ends where the position does not go up by one: transformers reads its packed masks in the same way.
    """
    breaks = position_ids[:, 1:] != position_ids[:, :-1] + 1
    return torch.nn.functional.pad(breaks.cumsum(1), (1, 0))
