"""The refusal balance: refuse what ought to be refused, and answer what only looks like it.

Its texts come in pairs: a harmful prompt with its refusal, and a harmless prompt with its answer. A student that learns from
refusals alone refuses everything; one that learns from answers alone nothing. And where tokens are counted, a long answer
outweighs a short refusal. So each row has the mean over its own tokens, and each side the mean over its own rows:

balance = ½ · mean over harmful rows of NLL(refusal | prompt) + ½ · mean over harmless rows of NLL(answer | prompt)
"""

from __future__ import annotations

from typing import Any

import torch


def balance(harmful: Any, harmless: Any) -> Any:
    """The balance, in nats a token.

    Args: harmful, harmless: mean negative log-likelihoods of each row's scored tokens [rows of that side].
    """
    return (harmful.mean() + harmless.mean()) / 2


def token_weights(scored: Any) -> Any:
    """Weights with which a sum over tokens is the sum over rows of their tokens' means. [batch, time]

    Of as many harmful as harmless rows, that sum divided by the number of rows is the balance.

    Args: scored: [batch, time], true where a label is predicted.
    """
    counts = scored.sum(1, keepdim=True)
    return torch.where(scored, 1.0 / counts.clamp_min(1), 0.0)
