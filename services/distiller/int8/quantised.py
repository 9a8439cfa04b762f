"""A model whose linear layers are int8, any of which can be put back as it was."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from services.common.int8.form import KINDS
from services.common.int8.linear import MOST_INPUTS, Int8Linear
from services.common.int8.notes import Kind


class Quantised:
    """The model, in float32 but for those layers; it is changed in place.

    An output head that shares its weight with the embedding is a matrix of its own while it is int8: the embedding stays.

    Attributes:
        model: with the layers as they are now.
        names: the layers that can be int8, in the model's order.
        kept: those of them that are as they were.
    """

    def __init__(self, model: Any, kind: Kind) -> None:
        self.model = model
        self._plain = {name: module for name, module in model.named_modules() if _fits(module)}
        self._int8: dict[str, Int8Linear] = {name: KINDS[kind].of(one) for name, one in self._plain.items()}
        self._head = next((name for name, one in self._plain.items() if one is model.get_output_embeddings()), None)
        self._tied = bool(getattr(model.config, "tie_word_embeddings", False))
        self.names = tuple(self._plain)
        self.kept: frozenset[str] = frozenset(self.names)
        self.keep(())

    @property
    def head(self) -> str | None:
        """The name of the output head, if it can be int8."""
        return self._head

    @property
    def layers(self) -> dict[str, Int8Linear]:
        """Those that are int8 now."""
        return {name: one for name, one in self._int8.items() if name not in self.kept}

    def keep(self, names: Collection[str]) -> None:
        """Have these as they were, and all others in int8."""
        for name in self.names:
            if (name in names) != (name in self.kept):
                self.model.set_submodule(name, self._plain[name] if name in names else self._int8[name])
        self.kept = frozenset(names)
        self.model.config.tie_word_embeddings = self._tied and (self._head is None or self._head in self.kept)


def _fits(module: Any) -> bool:
    """Plain linear layers, of sizes that every device multiplies integers of."""
    return (
        type(module) is nn.Linear
        and module.in_features <= MOST_INPUTS
        and module.in_features % 8 == 0
        and module.out_features % 8 == 0
    )
