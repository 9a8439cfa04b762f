"""Cross-entropy and divergences over the vocabulary, against sums of floats, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.distiller.objective import divergence, top_k
from services.distiller.objective.task import cross_entropy


def softmax(logits: list[float], temperature: float) -> list[float]:
    greatest = max(logits)
    powers = [math.exp((logit - greatest) / temperature) for logit in logits]
    return [power / sum(powers) for power in powers]


def dumb_kl(one: list[float], other: list[float]) -> float:
    return sum(p * math.log(p / q) for p, q in zip(one, other, strict=True) if p > 0)


def dumb(name: str, student: list[float], teacher: list[float], tau: float, beta: float) -> float:
    s, t = softmax(student, tau), softmax(teacher, tau)
    mixture = [beta * a + (1 - beta) * b for a, b in zip(t, s, strict=True)]
    return (
        tau**2
        * {
            "kl": dumb_kl(t, s),
            "reverse_kl": dumb_kl(s, t),
            "jsd": beta * dumb_kl(t, mixture) + (1 - beta) * dumb_kl(s, mixture),
        }[name]
    )


def clever(name: str, beta: float) -> Callable[[Any, Any, float], Any]:
    return partial(divergence.jsd, beta=beta) if name == "jsd" else getattr(divergence, name)


logits = st.lists(st.floats(-20, 20), min_size=5, max_size=5)


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "jsd"])
@settings(max_examples=100)
@given(student=logits, teacher=logits, tau=st.floats(0.5, 10), beta=st.floats(0.01, 0.99))
def test_a_divergence_is_what_its_formula_says(
    name: str, student: list[float], teacher: list[float], tau: float, beta: float
) -> None:
    found = clever(name, beta)(
        torch.tensor([student, teacher], dtype=torch.float64),
        torch.tensor([teacher, teacher], dtype=torch.float64),
        tau,
    )
    assert found[0].item() == pytest.approx(dumb(name, student, teacher, tau, beta), rel=1e-6, abs=1e-8)
    assert found[1].item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "jsd"])
def test_a_divergence_has_the_gradient_of_its_formula(name: str) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 3, 7, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda one: clever(name, 0.3)(one, teacher, 2.0), (student.requires_grad_(),))


def test_the_gradient_of_a_divergence_keeps_its_size_at_higher_temperatures() -> None:
    torch.manual_seed(0)
    student, teacher = 0.1 * torch.randn(2, 50, 20, dtype=torch.float64)
    sizes = []
    for tau in (1.0, 3.0, 10.0):
        leaf = student.clone().requires_grad_()
        divergence.kl(leaf, teacher, tau).sum().backward()
        sizes.append(float(leaf.grad.norm()))
    assert max(sizes) < 1.1 * min(sizes)


def test_cross_entropy_is_what_the_text_costs() -> None:
    torch.manual_seed(0)
    student, targets = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 5, 2, 2])
    expected = [
        -math.log(softmax(row, 1.0)[target]) for row, target in zip(student.tolist(), targets.tolist(), strict=True)
    ]
    assert cross_entropy(student, targets).tolist() == pytest.approx(expected)
    assert torch.autograd.gradcheck(lambda one: cross_entropy(one, targets), (student.requires_grad_(),))


@settings(max_examples=100)
@given(student=logits, teacher=logits, tau=st.floats(0.5, 10), k=st.integers(1, 4))
@example(student=[0.0, 0.0, 0.0, 0.0, 15.0], teacher=[0.0, 0.0, 0.0, 1.0, 1.0], tau=0.5, k=2)  # a tail of 3e-13
def test_the_divergence_of_the_most_likely_tokens_has_the_tail_as_one_more_bin(
    student: list[float], teacher: list[float], tau: float, k: int
) -> None:
    s, t = softmax(student, tau), softmax(teacher, tau)
    kept = sorted(range(5), key=lambda n: -t[n])[:k]
    rest = [n for n in range(5) if n not in kept]
    tails = [sum(p[n] for n in rest) for p in (t, s)]
    expected = tau**2 * dumb_kl([*(t[n] for n in kept), tails[0]], [*(s[n] for n in kept), tails[1]])
    one, other = (torch.tensor([values], dtype=torch.float64) for values in (student, teacher))
    ids, values = top_k.most_likely(other, k, tau)
    found = top_k.kl(one, ids, values, tau).item()
    whole = divergence.kl(one, other, tau).item()
    assert found <= whole + 1e-6
    if sorted(ids[0].tolist()) == sorted(kept):  # of equals, another may have been taken
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    if k == 4:
        assert found == pytest.approx(whole, rel=1e-4, abs=1e-6)


def test_the_divergence_of_the_most_likely_tokens_has_the_gradient_of_its_formula() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 3, 9, dtype=torch.float64)
    ids, values = top_k.most_likely(teacher, 3, 2.0)
    assert torch.autograd.gradcheck(lambda one: top_k.kl(one, ids, values, 2.0), (student.requires_grad_(),))


def test_what_the_teacher_leaves_to_the_tail_is_taught_too() -> None:
    teacher = torch.tensor([[3.0, 2.0, 2.0, 2.0, 2.0]])
    narrow = torch.tensor([[3.0, -9.0, -9.0, -9.0, -9.0]])  # right about the first, sure that there is nothing else
    ids, values = top_k.most_likely(teacher, 1, 1.0)
    assert top_k.kl(narrow, ids, values, 1.0).item() > 1
    assert top_k.kl(teacher, ids, values, 1.0).item() == pytest.approx(0, abs=1e-6)
