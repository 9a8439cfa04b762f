"""Documents of any length into sequences of one length. Values in, values out.

A sequence is the oldest document that waits, and then, as long as one fits, the longest that does. So no document waits for
ever, and little room is left empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.distiller.data.encode import MASKED, Document


@dataclass(frozen=True)
class Piece:
    """A document on its way, and what it is called: the byte of its record, and which of the record's pieces it is."""

    key: tuple[int, int]
    document: Document


@dataclass(frozen=True)
class Packed:
    """Documents side by side, and padding.

    Attributes:
        ids, labels, positions: [time]; a position is 0 where a document begins, and where the padding begins.
        slots: key, first token and length of each document.
    """

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    positions: tuple[int, ...]
    slots: tuple[tuple[tuple[int, int], int, int], ...]

    @property
    def length(self) -> int:
        """Tokens without the padding."""
        return sum(length for _, _, length in self.slots)

    @property
    def scored(self) -> int:
        return sum(label != MASKED for label in self.labels)


def choose(lengths: Sequence[int], room: int) -> list[int]:
    """Which of the waiting documents (oldest first, the first one fits) make the next sequence, in their order in it."""
    chosen = [0]
    room -= lengths[0]
    by_length = sorted(range(1, len(lengths)), key=lambda one: (-lengths[one], one))
    for one in by_length:
        if lengths[one] <= room:
            chosen.append(one)
            room -= lengths[one]
    return chosen


def pack(pieces: Sequence[Piece], tokens: int, padding: int) -> Packed:
    """These documents as one sequence; `padding` is the token that fills it up.

    Raises: ValueError: they are longer than it.
    """
    ids: list[int] = []
    labels: list[int] = []
    positions: list[int] = []
    slots = []
    for piece in pieces:
        length = len(piece.document.ids)
        slots.append((piece.key, len(ids), length))
        ids += piece.document.ids
        labels += piece.document.labels
        positions += range(length)
    rest = tokens - len(ids)
    if rest < 0:
        raise ValueError(f"{len(ids)} tokens do not fit into {tokens}")
    return Packed((*ids, *[padding] * rest), (*labels, *[MASKED] * rest), (*positions, *range(rest)), tuple(slots))
