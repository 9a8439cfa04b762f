"""Linear layers whose weight is int8, with a float32 scale for each output.

They are drop-in for `nn.Linear`, which PEFT asks for, and gradients go through them to their input, so that what is trained can
sit before or beside them. Their own weight is not trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from services.common.int8.rows import LARGEST, quantize

MOST_INPUTS = (2**31 - 1) // LARGEST**2
"""Products that an int32 surely holds the sum of."""
_CUDA_ROWS = 32  # a GPU multiplies no fewer than 17
_BLOCK_VALUES = 1 << 19  # weights that are floats at once: as many as a processor's cache holds


class Int8Linear(nn.Linear):  # type: ignore[misc]  # torch has no types here
    """y = x Wᵀ + bias + up(down(x)), W = `weight` × `scales`.

    Attributes:
        weight: [out, in], int8. scales: [out, 1], float32. bias: [out], or None.
        down, up: a low-rank adapter, [rank, in] and [out, rank]; None where it has none.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool, dtype: torch.dtype, rank: int = 0) -> None:
        """Without values yet; `of` and the saved form fill them in. Args: dtype: of all that stays in floats."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = inputs, outputs
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=torch.int8), requires_grad=False)
        self.scales = nn.Parameter(torch.empty(outputs, 1, dtype=torch.float32), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs, dtype=dtype), requires_grad=False) if bias else None
        self.down = nn.Parameter(torch.empty(rank, inputs, dtype=dtype), requires_grad=False) if rank else None
        self.up = nn.Parameter(torch.empty(outputs, rank, dtype=dtype), requires_grad=False) if rank else None

    @classmethod
    def of(cls, linear: nn.Linear) -> Int8Linear:
        """The same layer, quantised."""
        weight = linear.weight.detach()
        bias = linear.bias
        with torch.device(weight.device):
            made = cls(linear.in_features, linear.out_features, bias is not None, weight.dtype)
        integers, scales = quantize(weight)
        made.weight.data, made.scales.data = integers, scales
        if made.bias is not None:
            made.bias.data = bias.detach().clone()
        return made

    def adapt(self, down: Any, up: Any) -> None:
        """Put an adapter beside it: down [rank, in], up [out, rank]."""
        self.down = nn.Parameter(down.detach().clone(), requires_grad=False)
        self.up = nn.Parameter(up.detach().clone(), requires_grad=False)

    def forward(self, x: Any) -> Any:
        y = self._product(x.reshape(-1, self.in_features)).to(x.dtype).view(*x.shape[:-1], self.out_features)
        if self.bias is not None:
            y = y + self.bias
        if self.down is not None:
            y = y + functional.linear(functional.linear(x, self.down), self.up)
        return y

    def _product(self, x: Any) -> Any:
        """x Wᵀ in float32; x: [tokens, in]."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Nothing is drawn at random."""


class W8A8Linear(Int8Linear):
    """Activations are quantised too, token by token as they come; integers are multiplied."""

    def _product(self, x: Any) -> Any:
        return _W8A8.apply(x, self.weight, self.scales)


class WeightOnlyLinear(Int8Linear):
    """Weights become floats again when they are used."""

    def _product(self, x: Any) -> Any:
        return _WeightOnly.apply(x, self.weight, self.scales)


class _W8A8(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, scales: Any) -> Any:
        ctx.save_for_backward(weight, scales)
        integers, each = quantize(x)
        return _multiplied(integers, weight).float().mul_(each).mul_(scales[:, 0])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None, None]:
        """Straight through: as if the input had not been rounded."""
        return _back(gradient, *ctx.saved_tensors), None, None


class _WeightOnly(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, scales: Any) -> Any:
        ctx.save_for_backward(weight, scales)
        x = x.float()
        blocks = weight.split(max(1, _BLOCK_VALUES // weight.shape[1]))
        return torch.cat([functional.linear(x, block.float()) for block in blocks], 1).mul_(scales[:, 0])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None, None]:
        return _back(gradient, *ctx.saved_tensors), None, None


def _back(gradient: Any, weight: Any, scales: Any) -> Any:
    """The gradient [tokens, in] of the input in float32; autograd makes of it what the input is."""
    return (gradient * scales[:, 0]) @ weight.float()


def _multiplied(x: Any, weight: Any) -> Any:
    """x weightᵀ as int32; x: [tokens, in] int8. A GPU wants some rows more, and multiples of 8 in `weight`."""
    tokens = x.shape[0]
    if x.is_cuda and tokens < _CUDA_ROWS:
        x = functional.pad(x, (0, 0, 0, _CUDA_ROWS - tokens))
    return torch._int_mm(x, weight.t())[:tokens]
