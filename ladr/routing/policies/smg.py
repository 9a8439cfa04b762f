"""smg: least load, (queued tokens + dispatched since the report) / throughput + 0.15 · k / (1 − k), k the KV use.

Source: `least_load` of the SGLang model gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ladr.routing.policy import Ask, C, Candidate, Policy

KV_S = 0.15
FULL = 0.99  # more KV use than this counts as this
START_TOKENS_PER_S = 1_000.0  # until it has generated anything


def load_s(candidate: Candidate) -> float:
    """Seconds."""
    rate = candidate.tokens_per_s or START_TOKENS_PER_S
    kv_used = candidate.kv_used if candidate.kv_used is not None else candidate.depth / candidate.slots
    kv_used = min(kv_used, FULL)
    return (candidate.queued_tokens + candidate.sent_tokens) / rate + KV_S * kv_used / (1 - kv_used)


class Smg(Policy):
    """The least load; ties are drawn. Where a worker does not tell its KV use, its share of taken slots stands for it."""

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        return min(candidates, key=lambda c: (load_s(c), rng.random()))
