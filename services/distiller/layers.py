"""Where the parts of a causal language model are."""

from __future__ import annotations

from typing import Any

from services.distiller.refused import Refused


def layers(model: Any) -> Any:
    """The decoder layers, first to last (a ModuleList).

    Raises: Refused: the model has none under the usual name.
    """
    found = getattr(getattr(model, "base_model", model), "layers", None)
    if found is None or not len(found):
        raise Refused(
            "MODEL_UNSUPPORTED",
            f"{type(model).__name__} has no decoder layers under `model.layers`: choose a decoder like Llama, Mistral or Qwen.",
        )
    return found


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
