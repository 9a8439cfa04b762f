"""What a model costs, by count: multiply-adds of a token (two floating-point operations each), parameters, memory.

The output head is counted apart: it stays as it is when layers go, and is a fifth of a small model. An image encoder is counted
by picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from services.distiller.layers import attention_in, classifier, head, layers, parts
from services.distiller.refused import Refused

_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Cost:
    """Of one token; of an image encoder: of one picture.

    Attributes:
        head: multiply-adds of the output head (of an image encoder: its classes, once).
        rest: of all other linear layers, and of those that make patches.
        attention: of queries with keys and of weights with values, for a token that sees `context` keys in each layer.
        context: that number (of an image encoder: its patches).
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

    def sizes(self) -> dict[str, int]:
        """Bytes of all weights, by type that models are saved in."""
        return {dtype: self.memory_bytes(dtype) for dtype in ("float32", "bfloat16")}

    def saved(self, teacher: Cost) -> dict[str, float]:
        """Share of the teacher's multiply-adds and parameters that is saved: "total", "rest" (layers alone), "parameters"."""
        return {
            "total": 1 - self.total / teacher.total,
            "rest": 1 - (self.rest + self.attention) / (teacher.rest + teacher.attention),
            "parameters": 1 - self.parameters / teacher.parameters,
        }


def cost(model: Any, context: int) -> Cost:
    """Count a decoder: its linear layers, and of its experts as many as a token goes through.

    Raises: Refused: its config does not say how many these are.
    """
    last = head(model)
    rest = _experts(model) + sum(
        module.in_features * module.out_features
        for module in model.modules()
        if isinstance(module, nn.Linear) and module is not last
    )
    return Cost(
        head=last.weight.numel(),
        rest=rest,
        attention=sum(_attention(attention_in(layer), model.config, context) for layer in layers(model)),
        context=context,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def image_cost(model: Any) -> Cost:
    """Count an image encoder with one size of pictures."""
    count, last = patches(model.config), classifier(model)
    each = sum(
        module.in_features * module.out_features
        for module in model.modules()
        if isinstance(module, nn.Linear) and module is not last
    )
    each += sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Conv2d))
    found = [parts(layer) for layer in layers(model)]
    return Cost(
        head=0 if last is None else last.weight.numel(),
        rest=count * each,
        attention=sum(2 * count * count * one.queries.out_features for one in found if one is not None),
        context=count,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def patches(config: Any) -> int:
    """Patches of a picture."""
    sides = [one if isinstance(one, list | tuple) else (one, one) for one in (config.image_size, config.patch_size)]
    return int((sides[0][0] // sides[1][0]) * (sides[0][1] // sides[1][1]))


def _attention(attention: Any, config: Any, context: int) -> int:
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    window = getattr(attention, "sliding_window", getattr(config, "sliding_window", None))
    return int(2 * heads * width * (context if window is None else min(context, window)))


def _experts(model: Any) -> int:
    """Of experts, which transformers keeps side by side: [experts, out, in]. The choice between them is left out."""
    weights = [one for layer in layers(model) for one in layer.parameters() if one.ndim == 3]
    if not weights:
        return 0
    used = getattr(model.config, "num_experts_per_tok", None)
    if used is None:
        raise Refused(
            "MODEL_UNSUPPORTED",
            f"{type(model).__name__} does not say how many experts a token goes through: set num_experts_per_tok in its"
            " config.",
        )
    return sum(one.numel() // one.shape[0] * int(used) for one in weights)
