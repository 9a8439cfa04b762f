"""Packed sequences of a corpus: without end and in another order each time round (`Stream`), or once (`once`).

Both hold a window of documents, however large the corpus is. Where a stream is, is a small JSON value: what it gives after
`restore` is what it would have given without the stop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from services.distiller.data.corpus import Corpus, Offsets
from services.distiller.data.encode import Encoder, Untemplated
from services.distiller.data.order import Order
from services.distiller.data.packing import Packed, Piece, choose, pack
from services.distiller.data.record import read
from services.distiller.refused import Refused

WINDOW = 64
log = logging.getLogger(__name__)


@dataclass(eq=False)
class Reader:
    """Records of a corpus as pieces of at most `tokens` tokens.

    Attributes:
        skipped: how often a record gave nothing: nothing in it is scored, or the chat template does not take it.
        cut: how often a conversation was too long; what is beyond `tokens` is left out.
    """

    corpus: Corpus
    encoder: Encoder
    tokens: int
    skipped: int = 0
    cut: int = 0

    def pieces(self, offset: int) -> list[Piece]:
        """What the record at this byte gives, which may be nothing. Raises: Refused: it is no record any more."""
        try:
            documents = self.encoder.encode(self.corpus.record(offset, read))
        except Untemplated as error:
            log.warning("the record at byte %d is skipped, the chat template does not take it: %s", offset, error)
            documents = []
        for document in documents:
            if document.whole and len(document.ids) > self.tokens:
                self.cut += 1
                if self.cut == 1:
                    log.warning("the conversation at byte %d has %d tokens", offset, len(document.ids))
                    log.warning(
                        "what is beyond data.sequence_tokens, %d, is left out of all that are as long", self.tokens
                    )
        found = [piece for document in documents for piece in document.pieces(self.tokens)]
        self.skipped += not found
        return [Piece((offset, number), piece) for number, piece in enumerate(found)]


@dataclass(eq=False)
class Stream:
    """The records that are trained on, for ever; each epoch has an order of its own, drawn from the seed.

    Args: padding: token that fills a sequence up.
    """

    reader: Reader
    seed: int
    padding: int
    _order: Order = field(init=False)
    _waiting: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._order = Order(self.reader.corpus.train, self.seed)

    def __next__(self) -> Packed:
        """The next sequence.

        Raises: Refused: a whole epoch has nothing to score.
        """
        self._fill()
        return _take(self._waiting, self.reader.tokens, self.padding)

    @property
    def epoch(self) -> int:
        """How often the corpus has been gone round."""
        return self._order.epoch

    @property
    def position(self) -> dict[str, Any]:
        """Where the stream is: epoch, next record of its order, and the keys of the pieces that wait."""
        order = self._order
        return {"epoch": order.epoch, "next": order.following, "waiting": [list(piece.key) for piece in self._waiting]}

    def restore(self, position: dict[str, Any]) -> None:
        """Go on from where a stream of the same file, seed and length was."""
        self._order.restore(position["epoch"], position["next"])
        known: dict[int, list[Piece]] = {}
        self._waiting = []
        for offset, number in position["waiting"]:
            if offset not in known:
                known[offset] = self.reader.pieces(offset)
            self._waiting.append(known[offset][number])

    def _fill(self) -> None:
        barren = 0
        while len(self._waiting) < WINDOW:
            found = self.reader.pieces(next(self._order))
            self._waiting += found
            barren = 0 if found else barren + 1
            if barren >= 2 * len(self.reader.corpus.train):
                raise Refused(
                    "ALL_LABELS_MASKED",
                    "no record of the data has anything to score: give conversations with assistant answers that the"
                    " teacher's chat template takes, or set data.score_prompts",
                )


def once(reader: Reader, offsets: Offsets, padding: int) -> Iterator[Packed]:
    """The records at these bytes as packed sequences, in this order, once."""
    waiting: list[Piece] = []
    for offset in offsets:
        waiting += reader.pieces(int(offset))
        if len(waiting) >= WINDOW:
            yield _take(waiting, reader.tokens, padding)
    while waiting:
        yield _take(waiting, reader.tokens, padding)


def _take(waiting: list[Piece], tokens: int, padding: int) -> Packed:
    """The next sequence of those that wait, which it is taken out of."""
    chosen = choose([len(piece.document.ids) for piece in waiting[:WINDOW]], tokens)  # one record may give thousands
    made = pack([waiting[one] for one in chosen], tokens, padding)
    for one in sorted(chosen, reverse=True):
        del waiting[one]
    return made
