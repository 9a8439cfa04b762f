"""Block influence: how much a layer changes what goes through it.

1 − cosine(layer's input, layer's output), the mean over real tokens. A layer whose output points where its input does can go.

Source: Men et al. 2024, ShortGPT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn import functional

from services.distiller.layers import layers
from services.distiller.objective.batch import rows
from services.distiller.objective.forward import run
from services.distiller.refused import Refused

Run = Callable[[Any, Any], Any]


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
def block_influence(model: Any, batches: Iterable[Any], run: Run = run) -> list[float]:
    """The influence of each layer, 0 to 2, first to last.

    Args: run: takes the model over a batch.

    Raises: Refused: DATA_EMPTY: there is no real token.
    """
    sums = torch.zeros(len(layers(model)), dtype=torch.float64)
    tokens = torch.zeros(len(sums), dtype=torch.int64)
    for batch in batches:
        real = batch.real()
        with ExitStack() as hooks:
            for index, layer in enumerate(layers(model)):
                hooks.callback(layer.register_forward_hook(_adding(sums, tokens, index, real), with_kwargs=True).remove)
            run(model, batch)
    if not tokens.all():
        raise Refused("DATA_EMPTY", "no document to measure the layers on has a label: give data with answers.")
    return [float(value) for value in sums / tokens]


def _adding(sums: Any, tokens: Any, index: int, real: Any) -> Any:
    def add(module: Any, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        before = inputs[0] if inputs else options["hidden_states"]
        after = output[0] if isinstance(output, tuple) else output
        before, after = rows(before, real).float(), rows(after, real).float()
        tokens[index] += len(before)
        sums[index] += (1 - functional.cosine_similarity(before, after, -1)).double().sum().cpu()

    return add
