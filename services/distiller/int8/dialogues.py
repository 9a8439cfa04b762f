"""Which dialogues quantisation is fitted to, and which it is measured on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from services.distiller.data.packing import Packed
from services.distiller.data.stream import Reader, once

PROBE_TOKENS = 2048
"""Scored tokens that choices are made on."""


@dataclass(frozen=True)
class Dialogues:
    """Packed sequences.

    Attributes:
        probe: what choices are made on. fit: what is learned on (the probe, too, if there is nothing else).
        measured: what neither has seen.
        fitted, kept_apart: how many dialogues are in the first two, and in the third.
    """

    probe: list[Packed]
    fit: list[Packed]
    measured: list[Packed]
    fitted: int
    kept_apart: int


def share_out(reader: Reader, most: int, seed: int, padding: int) -> Dialogues:
    """Measured are records that were held out, a fifth of all at most; the others come of those trained on. Both are drawn by
    the seed.

    Args: most: dialogues in all; there is at least one of each kind.
    """
    corpus = reader.corpus
    total = min(most, len(corpus.train) + len(corpus.held_out))
    draw = np.random.default_rng([seed, 8])
    apart = _with_something(reader, draw.permutation(corpus.held_out), max(1, total // 5))
    others = _with_something(reader, draw.permutation(corpus.train), max(1, total - len(apart)))
    measured = list(once(reader, np.array(apart, dtype=np.int64), padding))
    sequences = list(once(reader, np.array(others, dtype=np.int64), padding))
    count = _probe_count([one.scored for one in sequences])
    return Dialogues(sequences[:count], sequences[count:] or sequences, measured, len(others), len(apart))


def _with_something(reader: Reader, offsets: Iterable[int], most: int) -> list[int]:
    """The first so many of the records that have anything to score."""
    found: list[int] = []
    for offset in offsets:
        if len(found) == most:
            break
        if reader.pieces(int(offset)):
            found.append(int(offset))
    return found


def _probe_count(scored: list[int]) -> int:
    """How many sequences have PROBE_TOKENS scored tokens: one at least, and no more than half of them beyond that."""
    count, tokens = 1, scored[0]
    while tokens < PROBE_TOKENS and count < len(scored) // 2:
        tokens += scored[count]
        count += 1
    return count
