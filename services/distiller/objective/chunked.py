"""A loss over the vocabulary without the logits in memory.

The logits of a batch are its largest tensor by far: 4,096 tokens of 49,152 words are 0.8 GB in float32, and a loss on two
models holds some ten of that size. Here a chunk of tokens at a time goes through the head, the loss and the loss's gradient by
the logits, which is folded into the gradients of hidden states and head right away, in the forward pass; the backward pass only
scales them. So one chunk of logits lives at a time, whatever the loss is.

Source: Hsu et al. 2024, Liger Kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

CHUNK = 128

LogitsLoss = Callable[[Any, slice], Any]
"""From a chunk's logits [tokens, vocabulary], float32 or wider, and where it is: the sum over its tokens of each term
[terms]."""


def head_loss(
    hidden: Any, weight: Any, bias: Any, loss_of: LogitsLoss, terms: int, chunk: int = CHUNK
) -> tuple[Any, Any]:
    """What `loss_of` gives for the logits of all tokens: its terms' total, and the terms, detached [terms].

    Under autocast the products are of its type; logits are float32 at least when `loss_of` sees them, and sums are too.

    Args:
        hidden: [tokens, width]; no token at all gives 0.
        weight: the head's [vocabulary, width]; bias: [vocabulary] or None.
        loss_of: differentiable by its logits.
        terms: how many terms `loss_of` gives.
        chunk: tokens whose logits are held at once.
    """
    return _HeadLoss.apply(hidden, weight, bias, loss_of, terms, chunk, torch.is_grad_enabled())  # type: ignore[no-any-return]


def wide(logits: Any) -> Any:
    """The logits in float32, or wider if they are."""
    return logits if logits.dtype == torch.float64 else logits.float()


class _HeadLoss(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    @staticmethod
    def forward(
        ctx: Any, hidden: Any, weight: Any, bias: Any, loss_of: LogitsLoss, terms: int, chunk: int, learning: bool
    ) -> Any:
        device = hidden.device.type
        sums = torch.zeros(terms, dtype=_sum_type(hidden), device=hidden.device)
        wanted = [learning and needed for needed in ctx.needs_input_grad[:3]]
        gradients = [
            torch.zeros_like(value, dtype=_sum_type(value)) if want else None
            for value, want in zip((hidden, weight, bias), wanted, strict=True)
        ]
        types = [value.dtype if value is not None else None for value in (hidden, weight, bias)]
        if torch.is_autocast_enabled(device):
            fast = torch.get_autocast_dtype(device)
            hidden, weight = hidden.to(fast), weight.to(fast)
            bias = None if bias is None else bias.to(fast)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(hidden), chunk):
                rows = slice(start, min(start + chunk, len(hidden)))
                logits = wide(functional.linear(hidden[rows], weight, bias))
                if not any(wanted):
                    sums += loss_of(logits, rows)
                    continue
                with torch.enable_grad():
                    parts = loss_of(logits.requires_grad_(), rows)
                    (by_logits,) = torch.autograd.grad(parts.sum(), logits)
                sums += parts.detach()
                del logits, parts
                _fold(gradients, by_logits.to(weight.dtype), hidden[rows], weight, rows)
        ctx.save_for_backward(
            *(
                gradient if gradient is None else gradient.to(dtype)
                for gradient, dtype in zip(gradients, types, strict=True)
            )
        )
        ctx.mark_non_differentiable(sums)
        return sums.sum(), sums

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]  # torch has no types here
    def backward(ctx: Any, by_total: Any, by_sums: Any) -> tuple[Any, ...]:
        gradients = (None if one is None else one * by_total.to(one.dtype) for one in ctx.saved_tensors)
        return (*gradients, None, None, None, None)


def _fold(gradients: list[Any], by_logits: Any, hidden: Any, weight: Any, rows: slice) -> None:
    """Add a chunk to the gradients of hidden states, weight and bias, in place."""
    by_hidden, by_weight, by_bias = gradients
    if by_hidden is not None:
        by_hidden[rows] = by_logits @ weight
    if by_weight is not None:
        if by_weight.dtype == by_logits.dtype:
            by_weight.addmm_(by_logits.T, hidden)
        else:
            by_weight += by_logits.T @ hidden
    if by_bias is not None:
        by_bias += by_logits.sum(0, dtype=by_bias.dtype)


def _sum_type(value: Any) -> Any:
    return torch.promote_types(value.dtype, torch.float32)
