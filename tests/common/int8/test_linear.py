"""Layers in 8 bits against a slow quantiser in float64; gradients; and what torchao makes of the same weights."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from services.common.int8.linear import Int8Linear, W8A8Linear, WeightOnlyLinear
from services.common.int8.rows import quantize

BOTH = pytest.mark.parametrize("kind", [W8A8Linear, WeightOnlyLinear])


def drawn(seed: int, rows: int, columns: int, spread: float = 1.0) -> Any:
    """Normal numbers, some columns much larger than others."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=made) * torch.exp(spread * torch.randn(columns, generator=made))


def slowly(rows: Any) -> tuple[Any, Any]:
    """Integers and scales, number by number."""
    whole = rows.double().numpy()
    integers, scales = np.zeros(whole.shape), np.zeros((len(whole), 1))
    for row in range(len(whole)):
        scales[row] = max(abs(value) for value in whole[row]) / 127 or 1e-12 / 127
        for column in range(whole.shape[1]):
            integers[row, column] = round(whole[row, column] / scales[row, 0])
    return integers, scales


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 5), columns=st.integers(1, 40), spread=st.floats(0, 3))
def test_rows_are_quantised_as_a_slow_float64_quantiser_does_it(
    seed: int, rows: int, columns: int, spread: float
) -> None:
    values = drawn(seed, rows, columns, spread)
    integers, scales = quantize(values)
    dumb, dumb_scales = slowly(values)
    assert np.allclose(scales.numpy(), dumb_scales, rtol=1e-6, atol=0)
    # float32 may see a tie where float64 sees none
    ties = np.abs(np.abs(values.double().numpy() / dumb_scales % 1) - 0.5) < 1e-4
    assert (integers.numpy()[~ties] == dumb[~ties]).all()
    assert integers.abs().max() == 127
    assert ((integers * scales - values).abs() <= scales * 0.5001).all()


def test_a_row_of_zeros_stays_one_and_a_huge_one_stays_finite() -> None:
    integers, scales = quantize(torch.tensor([[0.0, 0.0], [3e38, -1.0]]))
    assert (integers * scales)[0].tolist() == [0, 0]
    assert integers[1].tolist() == [127, 0]
    assert torch.isfinite(scales).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    tokens=st.integers(0, 20),
    sizes=st.tuples(st.integers(2, 40), st.integers(1, 40)),
    bias=st.booleans(),
    kind=st.sampled_from([W8A8Linear, WeightOnlyLinear]),
)
def test_a_layer_computes_what_integers_in_float64_give(
    seed: int, tokens: int, sizes: tuple[int, int], bias: bool, kind: type[Int8Linear]
) -> None:
    torch.manual_seed(seed)
    plain = nn.Linear(*sizes, bias=bias)
    made = kind.of(plain)
    x = drawn(seed, tokens, sizes[0])
    integers, scales = (one.double() for one in quantize(plain.weight.detach()))
    read = x.double()
    if kind is W8A8Linear:
        own, each = (one.double() for one in quantize(x)) if tokens else (read, read[:, :1])
        read = own * each
    wanted = read @ (integers * scales).T + (plain.bias.detach().double() if bias else 0)
    assert torch.allclose(made(x).double(), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max() if tokens else 1))


@BOTH
def test_a_token_has_the_same_answer_in_any_company(kind: type[Int8Linear]) -> None:
    made = kind.of(nn.Linear(64, 48))
    x = drawn(0, 30, 64)
    together = made(x.view(5, 6, 64)).view(30, 48)
    for row in range(30):
        alone = made(x[row : row + 1])[0]
        if kind is W8A8Linear:
            assert torch.equal(alone, together[row])
        assert torch.allclose(alone, together[row], atol=1e-5)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_goes_straight_through_to_the_input(kind: type[Int8Linear], dtype: torch.dtype) -> None:
    made = kind.of(nn.Linear(24, 16))
    x = drawn(1, 7, 24).to(dtype).requires_grad_()
    sent = drawn(2, 7, 16).to(dtype)
    made(x).backward(sent)
    assert x.grad.dtype == dtype
    wanted = sent.double() @ (made.weight.double() * made.scales.double())
    near = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    assert torch.allclose(x.grad.double(), wanted, rtol=near, atol=near * float(wanted.abs().max()))


def test_the_gradient_of_weight_only_is_the_slope_that_float64_differences_have() -> None:
    made = WeightOnlyLinear.of(nn.Linear(8, 8))
    x = drawn(3, 2, 8).requires_grad_()
    (made(x) ** 2).sum().backward()
    weight, step = made.weight.double() * made.scales, 1e-6
    bias = made.bias.double()
    for row in range(2):
        for column in range(8):
            moved = [x.detach().double().clone() for _ in range(2)]
            moved[0][row, column] += step
            moved[1][row, column] -= step
            up, down = (((one @ weight.T + bias) ** 2).sum() for one in moved)
            assert float(x.grad[row, column]) == pytest.approx(float((up - down) / (2 * step)), rel=1e-4, abs=1e-4)


@BOTH
def test_an_adapter_is_added_to_what_the_layer_gives(kind: type[Int8Linear]) -> None:
    made = kind.of(nn.Linear(16, 24))
    x, down, up = drawn(4, 5, 16), drawn(5, 3, 16), drawn(6, 24, 3)
    before = made(x)
    made.adapt(down, up)
    assert torch.allclose(made(x), before + x @ down.T @ up.T, atol=1e-4)


def test_weight_only_is_what_torchao_makes_of_the_same_weights() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchao looks for kernels that are not there
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(64, 48, bias=False))
        weight = plain[0].weight.detach().clone()
        own = WeightOnlyLinear.of(plain[0])
        quantize_(plain, Int8WeightOnlyConfig())
        x = drawn(7, 9, 64)
        theirs, there = plain(x).detach(), plain[0].weight.dequantize()
    ours = own.weight * own.scales
    # they have steps of m / 127.5: the numbers differ, by less than a step, and no one is nearer to the weights
    assert ((ours - there).abs() <= own.scales).all()
    assert float((ours - weight).norm()) == pytest.approx(float((there - weight).norm()), rel=0.05)
    exact = x @ weight.T
    assert float((own(x) - exact).norm()) == pytest.approx(float((theirs - exact).norm()), rel=0.25)
