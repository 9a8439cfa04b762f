"""A model's forward pass up to its head, with something else in the head's place.

The whole model is called, and not the decoder below the head, so that hooks of the root module run (FSDP gathers the weights of
embedding, norm and head there) and what happens in the head's place happens while its weights are whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from services.distiller.layers import head
from services.distiller.objective import hidden
from services.distiller.objective.attention import QueriesKeys
from services.distiller.objective.batch import Batch
from services.distiller.objective.kept import queries_and_keys
from services.distiller.refused import Refused


@dataclass(frozen=True)
class Seen:
    """What a pass left behind.

    Attributes:
        last: what came out in the head's place.
        attention, hidden: by layer: queries and keys, and what the layer gave [batch, time, width].
    """

    last: Any
    attention: dict[int, QueriesKeys]
    hidden: dict[int, Any]


def run(model: Any, batch: Batch, instead: Callable[[Any], Any] = lambda states: states) -> Any:
    """What `instead` makes of the last hidden states [batch, time, width]: a tensor.

    Documents do not see one another: without a mask and without a cache transformers makes the mask of `position_ids`.
    """
    place = head(model)
    own = place.__dict__.get("forward")  # accelerate sets one
    place.forward = instead
    try:
        return model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
    finally:
        del place.forward
        if own is not None:
            place.forward = own


def see(
    model: Any,
    batch: Batch,
    attention: Sequence[int],
    outputs: Sequence[int],
    instead: Callable[[Any], Any] = lambda states: states,
) -> Seen:
    """Run the model and keep queries and keys of some layers, and what some layers give.

    Raises: Refused: a layer does not show its queries and keys.
    """
    with queries_and_keys(model, attention) as kept, hidden.outputs(model, outputs) as given:
        last = run(model, batch, instead)
    if missing := set(attention) - kept.keys():
        raise Refused(
            "ATTENTION_UNSUPPORTED",
            f"layer {min(missing)} of {type(model).__name__} does not show its attention: set attention_weight to 0.",
        )
    return Seen(last, kept, given)


def whole(weight: Any) -> Any:
    """A weight as a plain tensor, gathered where it is sharded."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight
