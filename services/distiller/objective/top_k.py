"""The teacher's most likely tokens stand for its whole distribution, so that it runs once and its answer fits on disk.

What it gives to all other tokens together, the tail, is one more bin: without it the student would learn that the rest is
impossible. Probabilities are kept at the temperature of the objective, since the tail's mass at another one is not known.
"""

from __future__ import annotations

from typing import Any

from torch.nn import functional

_LEAST = 1e-12  # of a tail that rounding has left nothing of


def most_likely(teacher: Any, k: int, temperature: float) -> tuple[Any, Any]:
    """The k greatest of log softmax(z_T/τ) and their ids: ids [tokens, k], log-probabilities [tokens, k].

    Args: teacher: logits [tokens, vocabulary], float32 or wider; k: 1 to vocabulary − 1.
    """
    values, ids = functional.log_softmax(teacher / temperature, -1).topk(k, -1)
    return ids, values


def kl(student: Any, ids: Any, log_probabilities: Any, temperature: float) -> Any:
    """τ² KL(p_T ‖ p_S) of each token over k + 1 bins: the k tokens, and the tail. [tokens]

    It is at most the KL over the whole vocabulary (joining outcomes never adds to a KL), and the same where student and teacher
    share out their tails alike.

    Args: student: logits [tokens, vocabulary]; ids, log_probabilities: [tokens, k], as `most_likely` gives them.
    """
    student = functional.log_softmax(student / temperature, -1)
    student_tail = student.scatter(-1, ids, float("-inf")).logsumexp(-1)
    teacher_tail = (1 - log_probabilities.exp().sum(-1)).clamp_min(_LEAST)
    known = (log_probabilities.exp() * (log_probabilities - student.gather(-1, ids))).sum(-1)
    return temperature**2 * (known + teacher_tail * (teacher_tail.log() - student_tail))
