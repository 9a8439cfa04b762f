"""Documents side by side in sequences of one length."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.distiller.data.encode import MASKED, Document
from services.distiller.data.packing import Piece, choose, pack
from services.distiller.trainer.batches import batch
from tests.distiller import tiny


def piece(number: int, length: int) -> Piece:
    ids = tuple(range(1, length + 1))
    return Piece((number, 0), Document(ids, (MASKED, *ids[1:])))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40))
def test_the_oldest_goes_first_and_nothing_that_would_fit_stays_behind(lengths: list[int]) -> None:
    chosen = choose(lengths, 20)
    left = 20 - sum(lengths[one] for one in chosen)
    assert chosen[0] == 0
    assert len(set(chosen)) == len(chosen)
    assert left >= 0
    assert all(length > left for one, length in enumerate(lengths) if one not in chosen)


def test_positions_begin_anew_with_each_document_and_with_the_padding() -> None:
    packed = pack([piece(0, 3), piece(1, 2)], 8, padding=99)
    assert packed.ids == (1, 2, 3, 1, 2, 99, 99, 99)
    assert packed.positions == (0, 1, 2, 0, 1, 0, 1, 2)
    assert packed.labels == (MASKED, 2, 3, MASKED, 2, MASKED, MASKED, MASKED)
    assert packed.slots == (((0, 0), 0, 3), ((1, 0), 3, 2))
    assert (packed.scored, packed.length) == (3, 5)
    with pytest.raises(ValueError, match="do not fit"):
        pack([piece(0, 9)], 8, padding=99)


def test_documents_do_not_see_each_other() -> None:
    model = tiny.teacher().eval()
    pieces = [piece(0, 5), piece(1, 7), piece(2, 1), piece(3, 3)]
    together = batch([pack(pieces, 20, padding=0)])
    with torch.no_grad():
        logits = model(input_ids=together.input_ids, position_ids=together.position_ids, use_cache=False).logits[0]
        alone = torch.cat([model(input_ids=torch.tensor([one.document.ids])).logits[0] for one in pieces])
    torch.testing.assert_close(logits[: len(alone)], alone, rtol=0, atol=1e-5)
