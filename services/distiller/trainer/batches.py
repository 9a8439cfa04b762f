"""From packed sequences to tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from services.distiller.data.packing import Packed
from services.distiller.objective.batch import Batch


def batch(sequences: Sequence[Packed], device: str = "cpu") -> Batch:
    return Batch(
        torch.tensor([one.ids for one in sequences], device=device),
        torch.tensor([one.labels for one in sequences], device=device),
        torch.tensor([one.positions for one in sequences], device=device),
    )


def chunks(sequences: Sequence[Packed], size: int) -> list[list[Packed]]:
    return [list(sequences[start : start + size]) for start in range(0, len(sequences), size)]
