"""The task itself: say what the text says."""

from __future__ import annotations

from typing import Any

from torch.nn import functional


def cross_entropy(student: Any, targets: Any) -> Any:
    """−log softmax(z_S)[target] of each token, in nats. [tokens]

    Args: student: logits [tokens, vocabulary], float32 or wider; targets: [tokens].
    """
    return functional.cross_entropy(student, targets, reduction="none")
