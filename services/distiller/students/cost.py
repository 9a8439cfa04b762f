"""What a model costs, by count: multiply-adds of a token (two floating-point operations each), parameters, memory.

The output head is counted apart: it stays as it is when layers go, and is a fifth of a small model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from services.distiller.layers import head, layers

_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Cost:
    """Of one token.

    Attributes:
        head: multiply-adds of the output head.
        rest: of all other linear layers.
        attention: of queries with keys and of weights with values, for a token that sees `context` keys in each layer.
        context: that number.
        parameters: weights, tied ones once.
    """

    head: int
    rest: int
    attention: int
    context: int
    parameters: int

    @property
    def total(self) -> int:
        return self.head + self.rest + self.attention

    def memory_bytes(self, dtype: str) -> int:
        """Of all weights in one type ("float32", "bfloat16", "int8"), without scales."""
        return self.parameters * _BYTES[dtype]

    def saved(self, teacher: Cost) -> dict[str, float]:
        """Share of the teacher's multiply-adds and parameters that is saved: "total", "rest" (layers alone), "parameters"."""
        return {
            "total": 1 - self.total / teacher.total,
            "rest": 1 - (self.rest + self.attention) / (teacher.rest + teacher.attention),
            "parameters": 1 - self.parameters / teacher.parameters,
        }


def cost(model: Any, context: int) -> Cost:
    """Count a decoder whose weights are used once a token: linear layers, no experts."""
    last = head(model)
    rest = sum(
        module.in_features * module.out_features
        for module in model.modules()
        if isinstance(module, nn.Linear) and module is not last
    )
    return Cost(
        head=last.weight.numel(),
        rest=rest,
        attention=sum(_attention(layer.self_attn, context) for layer in layers(model)),
        context=context,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def _attention(attention: Any, context: int) -> int:
    window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
    return int(2 * attention.q_proj.out_features * (context if window is None else min(context, window)))
