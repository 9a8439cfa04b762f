"""What a model says of some sequences, kept, so that many others can be compared with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from services.distiller.objective.batch import IGNORE, Batch
from services.distiller.objective.forward import run
from services.distiller.report.agreement import CHUNK, Agreement


class Known:
    """A model's hidden states before its head, at scored tokens: [tokens, width] in memory, and no logits.

    Args: vocabulary: how many logits are compared. most_tokens: scored tokens, at most.
    """

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
    def __init__(self, model: Any, batches: Iterable[Batch], vocabulary: int, most_tokens: int = 1 << 62) -> None:
        self._head = model.get_output_embeddings()
        self._vocabulary = vocabulary
        self._seen: list[tuple[Batch, Any, Any]] = []
        self.tokens = 0
        for batch in batches:
            places = (batch.targets() != IGNORE).nonzero()[: most_tokens - self.tokens]
            if len(places):
                self._seen.append((batch, places, states(model, batch, places)))
                self.tokens += len(places)
            if self.tokens >= most_tokens:
                break

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
    def agreement(self, model: Any) -> Agreement:
        """How far another model agrees with it, as `report.agreement.measure` has it."""
        found = Agreement()
        head = model.get_output_embeddings()
        for batch, places, known in self._seen:
            own = states(model, batch, places)
            wanted = batch.targets()[places[:, 0], places[:, 1]]
            for start in range(0, len(places), CHUNK):
                part = slice(start, start + CHUNK)
                logits = head(own[part])[:, : self._vocabulary]
                found.add(logits, self._head(known[part])[:, : self._vocabulary], wanted[part])
        return found

    def kl(self, model: Any) -> float:
        """KL(known ‖ model) in nats, the mean over tokens."""
        found: Agreement = self.agreement(model)
        return found.kl


def states(model: Any, batch: Batch, places: Any) -> Any:
    """Hidden states before the head at those places [tokens, 2]; documents of a row do not see one another."""
    return run(model, batch)[places[:, 0], places[:, 1]]
