"""What is scored, and what a packed document sees."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.distiller.objective.batch import IGNORE, Batch, documents
from services.distiller.objective.forward import run
from tests.distiller.objective.tiny import FAMILIES, model, packed


@settings(max_examples=50)
@given(st.integers(0, 1 << 30), st.integers(3, 40))
def test_a_position_predicts_the_next_label_of_its_own_document(seed: int, time: int) -> None:
    batch = packed(3, time, seed)
    expected = [
        [
            int(batch.labels[row, at + 1]) if at + 1 < time and int(batch.position_ids[row, at + 1]) > 0 else IGNORE
            for at in range(time)
        ]
        for row in range(3)
    ]
    assert batch.targets().tolist() == expected
    assert batch.scored() == sum(target != IGNORE for row in expected for target in row)


def test_documents_are_numbered_and_those_without_a_label_are_padding() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 0, 1, 0, 0]])
    labels = torch.tensor([[IGNORE, 7, IGNORE, 7, IGNORE, 7, IGNORE, IGNORE]])
    assert documents(positions).tolist() == [[0, 0, 0, 1, 2, 2, 3, 4]]
    real = Batch(positions, labels, positions).real()
    assert real.tolist() == [[True, True, True, True, True, True, False, False]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_document_in_a_packed_row_does_as_it_does_alone(family: str) -> None:
    one = model(family)
    batch = packed(3, 25, seed=1)
    together = run(one, batch)
    place = documents(batch.position_ids)
    for row in range(3):
        for document in range(int(place[row].max()) + 1):
            at = (place[row] == document).nonzero()[:, 0]
            alone = Batch(*(value[row : row + 1, at] for value in (batch.input_ids, batch.labels, batch.position_ids)))
            torch.testing.assert_close(run(one, alone)[0], together[row, at], atol=1e-6, rtol=1e-6)
