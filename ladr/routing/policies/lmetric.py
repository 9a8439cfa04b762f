"""lmetric: the least product of prompt tokens to read and batch size.

Source: the load metric "new prefill tokens × batch" of cache-aware schedulers; without a cache it is the whole prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ladr.routing.policy import Ask, C, Candidate, Policy


def product(candidate: Candidate, prompt_tokens: int) -> float:
    """(prompt tokens that wait there + this prompt's) × (requests there + 1)."""
    unread = max(candidate.queued_tokens + candidate.sent_tokens, candidate.own_prompt_tokens)
    return (unread + max(prompt_tokens, 1)) * (candidate.depth + 1)


class LMetric(Policy):
    """The least product; ties are drawn."""

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        return min(candidates, key=lambda c: (product(c, ask.prompt_tokens), rng.random()))
