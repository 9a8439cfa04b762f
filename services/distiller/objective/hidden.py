"""Hidden-state transfer: mapped layers of the student give what the teacher's give.

Source: Romero et al. 2015, FitNets; Jiao et al. 2020, TinyBERT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from services.distiller.layers import layers


def distance(student: Any, teacher: Any) -> Any:
    """The sum over tokens of (h_T − h_S)², averaged over the width; float32 or wider.

    Args: student, teacher: [tokens, width], of one width.
    """
    wide = torch.promote_types(student.dtype, torch.float32)
    return (teacher.to(wide) - student.to(wide)).square().mean(-1).sum()


@contextmanager
def outputs(model: Any, indices: Sequence[int]) -> Iterator[dict[int, Any]]:
    """What the layers of these indices give [batch, time, width] while the block runs; it fills up as they do."""
    found: dict[int, Any] = {}

    def noting(index: int) -> Any:
        def note(module: Any, inputs: Any, output: Any) -> None:
            found[index] = output[0] if isinstance(output, tuple) else output

        return note

    hooks = [layers(model)[index].register_forward_hook(noting(index)) for index in dict.fromkeys(indices)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
