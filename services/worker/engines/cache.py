"""A causal model of transformers with a key-value cache of fixed places, a row for each running sequence.

Rows in use come first, each as long as it is; a row that ends is filled by the last one, so that a pass always reads one
contiguous view. What a pass writes behind a row's length is junk that later passes write over.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class View:
    """The part of the cache that the next forward pass works on: `rows`, and the positions [rows, time] to write."""

    rows: slice = field(default_factory=lambda: slice(0, 0))
    positions: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))
    length: int = 0


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types
    """Keys and values of one layer: [slots, heads, context, head size], written at each row's own position."""

    def __init__(self, view: View, slots: int, context: int) -> None:
        super().__init__()
        self._view = view
        self._slots = slots
        self._context = context

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        def like(states: torch.Tensor) -> torch.Tensor:
            _, heads, _, size = states.shape
            return states.new_zeros(self._slots, heads, self._context, size)

        self.keys, self.values = like(key_states), like(value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        view = self._view
        keys, values = self.keys[view.rows], self.values[view.rows]
        row = torch.arange(keys.shape[0], device=keys.device)[:, None]
        keys[row, :, view.positions] = key_states.transpose(1, 2)
        values[row, :, view.positions] = value_states.transpose(1, 2)
        return keys[:, :, : view.length], values[:, :, : view.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._view.length, 0

    def get_seq_length(self) -> int:
        return self._view.length

    def get_max_length(self) -> int:
        return self._context

    def move(self, source: int, target: int) -> None:
        """Copy a row over another."""
        if self.is_initialized:
            self.keys[target] = self.keys[source]
            self.values[target] = self.values[source]

    def wipe(self, row: int) -> None:
        """Zeros in place of a row."""
        if self.is_initialized:
            self.keys[row] = 0
            self.values[row] = 0


class Reader:
    """The model and its cache. Not thread-safe: one thread calls it.

    Attributes: done: tokens of each row in use that are in the cache.
    """

    def __init__(self, model: torch.nn.Module, layers: int, slots: int, context: int) -> None:
        self._model = model
        self._view = View()
        self._layers = [SlotLayer(self._view, slots, context) for _ in range(layers)]
        self._cache = Cache(layers=self._layers)
        self._context = context
        self.device = next(model.parameters()).device
        self.done: list[int] = []

    def add(self) -> None:
        """One more row, empty."""
        self.done.append(0)

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
    def remove(self, row: int) -> None:
        """Free a row; the last one takes its place."""
        last = len(self.done) - 1
        if row != last:
            for layer in self._layers:
                layer.move(last, row)
            self.done[row] = self.done[last]
        self.done.pop()

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
    def wipe(self, row: int) -> None:
        """Leave no number of a row behind, which is of no use then."""
        for layer in self._layers:
            layer.wipe(row)

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
    def read(self, rows: slice, tokens: Items[Items[int]], starts: Items[int], keep: int = 1) -> torch.Tensor:
        """Read tokens [rows, time] into the rows from those positions on; `done` is the caller's to move.

        Returns: logits [rows, keep, vocabulary] of the last `keep` of them, as float32.
        """
        ids = torch.tensor(tokens, device=self.device)
        time = ids.shape[1]
        positions = torch.tensor(starts, device=self.device)[:, None] + torch.arange(time, device=self.device)
        positions.clamp_(max=self._context - 1)  # of junk alone, and no answer reads the last place
        self._view.rows = rows
        self._view.positions = positions
        self._view.length = min(max(starts) + time, self._context)
        keys = torch.arange(self._view.length, device=self.device)
        mask = keys[None, None, None, :] <= positions[:, None, :, None]
        output = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, cache=self._cache, logits_to_keep=keep
        )
        logits: torch.Tensor = output.logits.float()
        return logits
