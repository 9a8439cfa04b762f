"""From packed sequences to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from services.distiller.data.encode import MASKED, Document
from services.distiller.data.packing import Packed
from services.distiller.objective.batch import Batch

T = TypeVar("T")


def batch(sequences: Sequence[Packed], device: str = "cpu") -> Batch:
    return Batch(
        torch.tensor([one.ids for one in sequences], device=device),
        torch.tensor([one.labels for one in sequences], device=device),
        torch.tensor([one.positions for one in sequences], device=device),
    )


def rows(documents: Sequence[Document], padding: int, device: str = "cpu") -> Batch:
    """Pairs of documents for the refusal balance, each a row of its own."""
    width = max(len(one.ids) for one in documents)
    rest = [width - len(one.ids) for one in documents]
    return Batch(
        torch.tensor([[*one.ids, *[padding] * more] for one, more in zip(documents, rest, strict=True)], device=device),
        torch.tensor(
            [[*one.labels, *[MASKED] * more] for one, more in zip(documents, rest, strict=True)], device=device
        ),
        torch.tensor(
            [[*range(len(one.ids)), *range(more)] for one, more in zip(documents, rest, strict=True)], device=device
        ),
        pairs=True,
    )


def chunks(some: Sequence[T], size: int) -> list[list[T]]:
    return [list(some[start : start + size]) for start in range(0, len(some), size)]
