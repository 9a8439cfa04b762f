"""Attention transfer: the student looks where the teacher looks.

The map of a layer is A = softmax(q kᵀ · scaling), [heads, queries, keys]; a query sees the keys of its own document up to
itself, and, in a layer with a sliding window, no further back than that. The distance is (A_T − A_S)², summed over keys,
averaged over heads, and over queries, of which only those that predict a scored label count. It is in 0 to 2. (A mean over keys
too would be a thousand times less at 512 of them, and do nothing.)

A student whose heads are some of its teacher's is compared with those. Else, where one model has a multiple of the other's
heads, the means of its groups of neighbours are compared; where neither does, the means of all heads.

Sources: Zagoruyko and Komodakis 2017; Jiao et al. 2020, TinyBERT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

CHUNK = 256


@dataclass(frozen=True)
class QueriesKeys:
    """What a layer's attention map is made of.

    Attributes:
        queries: [batch, heads, time, head width], rotated.
        keys: [batch, groups, time, head width], rotated; each group serves heads/groups heads.
        scaling: factor before the softmax.
        window: how many keys a query sees at most, itself included, or None.
    """

    queries: Any
    keys: Any
    scaling: float
    window: int | None = None


def distance(
    student: QueriesKeys,
    teacher: QueriesKeys,
    documents: Any,
    scored: Any,
    heads: Sequence[int] | None = None,
    chunk: int = CHUNK,
) -> Any:
    """The sum over scored queries of (A_T − A_S)², summed over keys and averaged over heads; float32, or wider as the student
    is.

    The maps are made for some queries of a row at a time, and again in the backward pass: no whole map is in memory.

    Args:
        documents: [batch, time], or None: every query sees every key. scored: [batch, time], true for the queries that count.
        heads: which of the teacher's the student's heads are compared with, one by one; None: see `same_heads`.
        chunk: queries at once.
    """
    total = torch.zeros((), dtype=torch.promote_types(student.queries.dtype, torch.float32), device=scored.device)
    for row in scored.any(1).nonzero()[:, 0].tolist():
        for at in scored[row].nonzero()[:, 0].split(chunk):
            total = total + checkpoint(_distance, student, teacher, documents, row, at, heads, use_reentrant=False)
    return total


def maps(layer: QueriesKeys, documents: Any, row: int, at: Any) -> Any:
    """A of the queries `at` of a row. [heads, queries, time]"""
    queries = layer.queries[row][:, at]
    keys = layer.keys[row]
    heads, count, width = queries.shape
    grouped = queries.reshape(len(keys), -1, width)  # the heads of a group side by side, as if it had more queries
    weights = (grouped @ keys.transpose(1, 2)).reshape(heads, count, -1) * layer.scaling
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if documents is not None:
        weights = weights.masked_fill(~visible(documents[row], at, layer.window), float("-inf"))
    return weights.softmax(-1)


def visible(documents: Any, at: Any, window: int | None) -> Any:
    """Whether the queries `at` see each key: causal, of one document, within the window. [queries, time]"""
    keys = torch.arange(len(documents), device=documents.device)
    back = at[:, None] - keys
    seen = (back >= 0) & (documents[at][:, None] == documents)
    return seen if window is None else seen & (back < window)


def same_heads(one: Any, other: Any) -> tuple[Any, Any]:
    """Two maps [heads, …] with as many heads as each other; see above."""
    if len(one) % len(other) == 0:
        return _grouped(one, len(other)), other
    if len(other) % len(one) == 0:
        return one, _grouped(other, len(one))
    return one.mean(0, keepdim=True), other.mean(0, keepdim=True)


def _grouped(maps: Any, groups: int) -> Any:
    return maps if len(maps) == groups else maps.unflatten(0, (groups, -1)).mean(1)


def _distance(
    student: QueriesKeys, teacher: QueriesKeys, documents: Any, row: int, at: Any, heads: Sequence[int] | None
) -> Any:
    one, other = maps(student, documents, row, at), maps(teacher, documents, row, at)
    one, other = same_heads(one, other) if heads is None else (one, other[list(heads)])
    return (other - one).square().sum(-1).mean(0).sum()
