"""The refusal balance, against loops."""

from __future__ import annotations

import pytest
import torch

from services.distiller.objective.refusals import balance, token_weights


def test_a_long_answer_counts_as_much_as_a_short_refusal() -> None:
    costs = torch.tensor([[3.0, 5.0, 9.0, 9.0], [1.0, 1.0, 1.0, 3.0]], dtype=torch.float64)
    scored = torch.tensor([[True, True, False, False], [True, True, True, True]])
    weighted = (token_weights(scored) * costs).sum() / 2
    assert weighted.item() == pytest.approx(balance(torch.tensor([4.0]), torch.tensor([1.5])).item())
    assert weighted.item() == pytest.approx((4 + 1.5) / 2)


def test_a_row_without_a_scored_token_counts_nothing() -> None:
    assert token_weights(torch.tensor([[False, False], [True, False]])).tolist() == [[0, 0], [1, 0]]


def test_each_side_counts_by_half_whatever_its_number_of_rows() -> None:
    assert balance(torch.tensor([2.0, 4.0, 6.0]), torch.tensor([1.0])).item() == pytest.approx(2.5)


def test_the_balance_has_the_gradient_of_finite_differences() -> None:
    sides = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in (2, 3)]
    assert torch.autograd.gradcheck(balance, sides)
