"""How far the student's distribution over the vocabulary is from the teacher's, token by token.

With p_T = softmax(z_T/τ) and p_S = softmax(z_S/τ), in nats, times τ²: the gradient of the divergence by the logits falls with
1/τ², and τ² keeps its weight against the other terms the same at every temperature.

kl           KL(p_T ‖ p_S): the student covers all that the teacher may say
reverse_kl   KL(p_S ‖ p_T): the student says only what the teacher may say
jsd          β KL(p_T ‖ m) + (1 − β) KL(p_S ‖ m) with m = β p_T + (1 − β) p_S

Sources: Hinton et al. 2015 (τ²); Gu et al. 2024, MiniLLM (reverse); Agarwal et al. 2024, GKD (generalised JSD).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional


def kl(student: Any, teacher: Any, temperature: float) -> Any:
    """τ² KL(p_T ‖ p_S) of each token. [tokens]

    Args: student, teacher: logits [tokens, vocabulary], float32 or wider; temperature: τ > 0.
    """
    student, teacher = _log_softmax(student, temperature), _log_softmax(teacher, temperature)
    return temperature**2 * _kl(teacher, student)


def reverse_kl(student: Any, teacher: Any, temperature: float) -> Any:
    """τ² KL(p_S ‖ p_T) of each token; arguments as of `kl`. [tokens]"""
    student, teacher = _log_softmax(student, temperature), _log_softmax(teacher, temperature)
    return temperature**2 * _kl(student, teacher)


def jsd(student: Any, teacher: Any, temperature: float, beta: float) -> Any:
    """τ² (β KL(p_T ‖ m) + (1 − β) KL(p_S ‖ m)) of each token; arguments as of `kl`, and 0 < β < 1. [tokens]"""
    student, teacher = _log_softmax(student, temperature), _log_softmax(teacher, temperature)
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return temperature**2 * (beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture))


def _log_softmax(logits: Any, temperature: float) -> Any:
    return functional.log_softmax(logits / temperature, -1)


def _kl(one: Any, other: Any) -> Any:
    return (one.exp() * (one - other)).sum(-1)
