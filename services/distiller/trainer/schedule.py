"""Learning rate and weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from services.distiller.spec import Training

FLOOR = 0.1
"""Share of the highest learning rate that the last step has."""


def learning_rate(step: int, training: Training) -> float:
    """The rate of a step (from 0): up in a line over the warm-up, then down along half a cosine to a tenth."""
    warmup = training.steps // 20 if training.warmup_steps is None else training.warmup_steps
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, training.steps - 1 - warmup)
    return training.learning_rate * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * min(1.0, done))) / 2)


def groups(parameters: Iterable[Any], weight_decay: float) -> list[dict[str, Any]]:
    """Parameters as an optimiser takes them: matrices decay, norms and biases do not."""
    matrices: list[Any] = []
    others: list[Any] = []
    for parameter in parameters:
        (matrices if parameter.ndim > 1 else others).append(parameter)
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
