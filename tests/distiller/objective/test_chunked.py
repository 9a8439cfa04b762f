"""The loss without the logits in memory: the same values and gradients as the naive form."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from services.distiller.objective import divergence, top_k
from services.distiller.objective.chunked import head_loss, wide
from services.distiller.objective.task import cross_entropy

WORDS, WIDTH, TOKENS = 101, 12, 23
DIVERGENCES = {
    "kl": divergence.kl,
    "reverse_kl": divergence.reverse_kl,
    "jsd": partial(divergence.jsd, beta=0.3),
    "top_k": lambda student, teacher, tau: top_k.kl(student, *top_k.most_likely(teacher, 5, tau), tau),
}


def leaves(dtype: Any) -> tuple[Any, ...]:
    """Hidden states, weight and bias."""
    torch.manual_seed(0)
    shapes: list[tuple[int, ...]] = [(TOKENS, WIDTH), (WORDS, WIDTH), (WORDS,)]
    return tuple(torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes)


def loss_of(name: str, dtype: Any) -> Any:
    torch.manual_seed(1)
    teacher, targets = torch.randn(TOKENS, WORDS, dtype=dtype), torch.randint(0, WORDS, (TOKENS,))

    def loss(logits: Any, rows: slice) -> Any:
        far = DIVERGENCES[name](logits, teacher[rows], 3.0)
        return torch.stack([cross_entropy(logits, targets[rows]).sum(), 0.8 * far.sum()])

    return loss


@pytest.mark.parametrize("chunk", [1, 7, 23, 128])
@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_value_and_gradients_are_those_of_the_naive_form(name: str, chunk: int, dtype: Any, near: float) -> None:
    loss = loss_of(name, dtype)
    hidden, weight, bias = leaves(dtype)
    naive = loss(functional.linear(hidden, weight, bias), slice(0, TOKENS))
    expected = torch.autograd.grad(2 * naive.sum(), (hidden, weight, bias))
    total, sums = head_loss(hidden, weight, bias, loss, 2, chunk)
    found = torch.autograd.grad(2 * total, (hidden, weight, bias))
    torch.testing.assert_close(sums, naive.detach(), atol=near, rtol=near)
    torch.testing.assert_close(total.detach(), naive.detach().sum(), atol=near, rtol=near)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=near * float(other.abs().max()), rtol=near)


def test_it_has_the_gradient_of_finite_differences() -> None:
    torch.manual_seed(0)
    hidden, weight, bias, teacher = (
        torch.randn(shape, dtype=torch.float64) for shape in ((5, 3), (6, 3), (6,), (5, 6))
    )

    def total(*values: Any) -> Any:
        return head_loss(
            *values, lambda logits, rows: DIVERGENCES["jsd"](logits, teacher[rows], 3.0)[:, None].sum(0), 1, 2
        )[0]

    assert torch.autograd.gradcheck(total, tuple(value.requires_grad_() for value in (hidden, weight, bias)))


def test_no_tensor_has_the_logits_of_more_tokens_than_a_chunk() -> None:
    class Largest(TorchDispatchMode):  # type: ignore[misc]
        rows = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            for one in tree_leaves(result):
                if torch.is_tensor(one) and one.ndim == 2 and one.shape[1] == WORDS:
                    self.rows = max(self.rows, one.shape[0])
            return result

    hidden, weight, _ = leaves(torch.float32)
    targets = torch.randint(0, WORDS, (TOKENS,))
    with Largest() as largest:
        total, _ = head_loss(
            hidden, weight, None, lambda logits, rows: cross_entropy(logits, targets[rows]).sum()[None], 1, 4
        )
        total.backward()
    assert 4 <= largest.rows <= WIDTH  # a chunk, or the weight turned over: not TOKENS
    assert hidden.grad.abs().sum() > 0


def test_a_frozen_head_gets_no_gradient_and_a_look_without_gradients_makes_none() -> None:
    loss = loss_of("kl", torch.float32)
    hidden, weight, _ = leaves(torch.float32)
    total, _ = head_loss(hidden, weight.detach(), None, loss, 2, 5)
    total.backward()
    assert hidden.grad is not None
    with torch.no_grad():
        looked, _ = head_loss(hidden, weight, None, loss, 2, 5)
    assert not looked.requires_grad
    assert looked.item() == pytest.approx(total.item(), rel=1e-6)


def test_no_token_at_all_costs_nothing() -> None:
    hidden, weight, _ = leaves(torch.float32)
    total, sums = head_loss(hidden[:0], weight, None, loss_of("kl", torch.float32), 2, 5)
    total.backward()
    assert (total.item(), sums.tolist()) == (0, [0, 0])
    assert weight.grad.abs().sum() == 0


def test_under_bfloat16_autocast_products_are_short_and_sums_are_not() -> None:
    loss = loss_of("kl", torch.float32)
    hidden, weight, bias = leaves(torch.float32)
    exact, _ = head_loss(hidden, weight, bias, loss, 2, 5)
    expected = torch.autograd.grad(exact, (hidden, weight, bias))
    seen = set()

    def noting(logits: Any, rows: slice) -> Any:
        seen.add(logits.dtype)
        return loss(logits, rows)

    with torch.autocast("cpu", torch.bfloat16):
        total, sums = head_loss(hidden, weight, bias, noting, 2, 5)
        found = torch.autograd.grad(total, (hidden, weight, bias))
    assert seen == {torch.float32}
    assert (total.dtype, sums.dtype) == (torch.float32, torch.float32)
    assert total.item() == pytest.approx(exact.item(), rel=0.01)
    assert total.item() != exact.item()
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()


def test_logits_are_widened_to_float32_at_least() -> None:
    widened = [wide(torch.zeros(1, dtype=one)).dtype for one in (torch.bfloat16, torch.float32, torch.float64)]
    assert widened == [torch.float32, torch.float32, torch.float64]
