"""A student of some of the teacher's layers, which are copied bit for bit, as is all else."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from services.distiller.layers import layers, stack
from services.distiller.refused import Refused


def most_influential(influence: Sequence[float], count: int) -> list[int]:
    """The first layer and the last, and of the rest those with the greatest influence; ascending. Of equals, the earlier.

    The first layer reads the embeddings and the last writes what the head reads, so both stay whatever is measured. In the 135M
    chat model they are the two most influential anyway (1.0 and 0.3; the median is 0.04), and the choice is the same without
    this rule.
    """
    inner = sorted(range(1, len(influence) - 1), key=lambda index: -influence[index])
    ends = [len(influence) - 1, 0][: max(count, 0)]
    return sorted({*ends, *inner[: max(count - len(ends), 0)]})


def evenly_spaced(layers: int, count: int) -> list[int]:
    """So many of the layers at even distances, the first and the last among them (of one: the last)."""
    if count == 1:
        return [layers - 1]
    return [(index * (layers - 1) + (count - 1) // 2) // (count - 1) for index in range(count)]


def cut(teacher: Any, kept: Sequence[int]) -> Any:
    """A copy of the teacher with only these layers, ascending. The teacher stays as it is.

    Raises: Refused: a layer is not there, or none is left.
    """
    owner, name = stack(teacher)
    whole = getattr(owner, name)
    if not kept or kept[0] < 0 or kept[-1] >= len(whole):
        raise Refused(
            "LAYERS_MISMATCH", f"the teacher has {len(whole)} layers: keep 1 to {len(whole)} of them, from 0 on."
        )
    try:
        setattr(owner, name, type(whole)([whole[index] for index in kept]))  # so that only these are copied
        student = copy.deepcopy(teacher)
    finally:
        setattr(owner, name, whole)
    for key, value in vars(student.config).items():
        if isinstance(value, list) and len(value) == len(whole):  # one for each layer: layer_types…
            setattr(student.config, key, [value[index] for index in kept])
    student.config.num_hidden_layers = len(kept)
    if hasattr(student.config, "stage_names"):  # of an encoder that can be a backbone: it names its layers
        student.config.stage_names = ["stem", *(f"stage{number}" for number in range(1, len(kept) + 1))]
        student.config.set_output_features_output_indices(None, None)
    for index, layer in enumerate(layers(student)):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = index
    return student
