"""A layer's queries and keys, kept while the model runs.

transformers lets every attention layer choose its function by name. The mapped layers are given one that notes queries and
keys, rotated and normalised as the model does it, and then does what the model's own would have done. So one layer's map can be
made, and every other layer runs as always.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from services.distiller.layers import attention_in, layers
from services.distiller.objective.attention import QueriesKeys
from services.distiller.refused import Refused

_NAME = "ladr_kept"


@contextmanager
def queries_and_keys(model: Any, indices: Sequence[int]) -> Iterator[dict[int, QueriesKeys]]:
    """What the layers of these indices compute while the block runs; it fills up as they do."""
    found: dict[int, QueriesKeys] = {}
    own = {index: attention_of(model, index).config for index in indices}
    try:
        for index, config in own.items():
            noting = copy.copy(config)
            noting._attn_implementation_internal = _NAME
            noting.kept = (found, index, _function(config._attn_implementation))
            attention_of(model, index).config = noting
        yield found
    finally:
        for index, config in own.items():
            attention_of(model, index).config = config


def attention_of(model: Any, index: int) -> Any:
    """A layer's attention.

    Raises: Refused: it has none whose queries and keys can be had.
    """
    attention = attention_in(layers(model)[index])
    if (
        attention is None
        or not hasattr(attention, "config")
        or not getattr(model, "_supports_attention_backend", False)
    ):
        raise Refused(
            "ATTENTION_UNSUPPORTED",
            f"layer {index} of {type(model).__name__} has no attention map: set attention_weight to 0.",
        )
    return attention


def _function(name: str | None) -> Any:
    return ALL_ATTENTION_FUNCTIONS.get(name, ALL_ATTENTION_FUNCTIONS["sdpa"])


def _note(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
    found, index, function = module.config.kept
    if options.get("softcap") is not None:
        raise Refused(
            "ATTENTION_UNSUPPORTED",
            "a layer that caps its attention scores has another kind of map: set attention_weight to 0.",
        )
    scaling = options.get("scaling")
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    found[index] = QueriesKeys(query, key, scaling, options.get("sliding_window"))
    return function(module, query, key, value, attention_mask, **options)


ALL_ATTENTION_FUNCTIONS.register(_NAME, _note)
