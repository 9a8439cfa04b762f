"""Where the parts of a model of transformers are: of a causal language model, or of an image encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from services.distiller.refused import Refused


@dataclass(frozen=True)
class Parts:
    """The linear layers of one layer.

    Attributes:
        attention: the module that holds the next four.
        queries, keys, values, output: its projections.
        inner: what makes the feed-forward's inner units (of Llama: gate and up).
        outer: what reads them.
    """

    attention: Any
    queries: Any
    keys: Any
    values: Any
    output: Any
    inner: tuple[Any, ...]
    outer: Any


def stack(model: Any) -> tuple[Any, str]:
    """The module that holds the layers, and under which name.

    Raises: Refused: the model has none under the usual names.
    """
    base = getattr(model, "base_model", model)
    for owner in (base, getattr(base, "encoder", None)):
        for name in ("layers", "layer"):
            found = getattr(owner, name, None)
            if isinstance(found, nn.ModuleList) and len(found):
                return owner, name
    raise Refused(
        "MODEL_UNSUPPORTED",
        f"{type(model).__name__} has no layers under a usual name: choose a decoder like Llama, Mistral or Qwen, or an image"
        " encoder like ViT.",
    )


def layers(model: Any) -> Any:
    """The layers, first to last (a ModuleList). Raises: Refused: see `stack`."""
    owner, name = stack(model)
    return getattr(owner, name)


def attention_in(layer: Any) -> Any:
    """A layer's attention, or None."""
    return getattr(layer, "self_attn", None) or getattr(layer, "attention", None)


def parts(layer: Any) -> Parts | None:
    """A layer's linear layers; None where it is built in another way than Llama's or ViT's."""
    attention, mlp = attention_in(layer), getattr(layer, "mlp", None)
    q, k, v, o = (getattr(attention, f"{name}_proj", None) for name in "qkvo")
    o = o or getattr(attention, "out_proj", None)
    for inner, outer in ((("gate_proj", "up_proj"), "down_proj"), (("fc1",), "fc2")):
        found = [getattr(mlp, name, None) for name in (*inner, outer)]
        if all(isinstance(one, nn.Linear) for one in (q, k, v, o, *found)):
            return Parts(attention, q, k, v, o, tuple(found[:-1]), found[-1])
    return None


def head(model: Any) -> Any:
    """The linear layer that makes logits of hidden states.

    Raises: Refused: there is none, or the model does something to its logits afterwards.
    """
    found = model.get_output_embeddings()
    if found is None or getattr(found, "weight", None) is None:
        raise Refused(
            "MODEL_UNSUPPORTED", f"{type(model).__name__} has no output head: choose a causal language model."
        )
    for name in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(model.config, name, None) not in (None, 1, 1.0):
            raise Refused(
                "MODEL_UNSUPPORTED", f"{type(model).__name__} changes its logits ({name}): choose one that does not."
            )
    return found


def classifier(model: Any) -> Any:
    """The linear layer that makes an image's classes, or None."""
    found = getattr(model, "classifier", None)
    return found if isinstance(found, nn.Linear) else None
