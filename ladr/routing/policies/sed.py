"""sed: shortest expected delay, (outstanding tokens + own) / token rate.

Source: Linux Virtual Server's `sed` scheduler, with tokens for connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ladr.routing.policy import Ask, C, Candidate, Policy

START_TOKENS_PER_S = 100.0  # of a slot, until a pace is known


def capacity_per_s(candidate: Candidate) -> float:
    """Tokens a second with all slots taken, from the pace that it has now."""
    return candidate.slots * (1 / candidate.pace_s if candidate.pace_s else START_TOKENS_PER_S)


def delay_s(candidate: Candidate, tokens: float) -> float:
    """Seconds until all is done there. Others' requests count like this router's own, or like this one where it has none."""
    own = candidate.in_flight
    each = candidate.own_tokens / own if own else tokens
    return (candidate.own_tokens + (candidate.depth - own) * each + tokens) / capacity_per_s(candidate)


class ShortestExpectedDelay(Policy):
    """The least delay; ties are drawn."""

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        tokens = max(ask.prompt_tokens + ask.answer_tokens, 1.0)
        return min(candidates, key=lambda c: (delay_s(c, tokens), rng.random()))
