"""Least request: the fewest open requests of this router, by its own count alone."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ladr.routing.policy import Ask, C, Candidate, Policy


class LeastRequest(Policy):
    """The least `in_flight`; ties are drawn. Needs no reports, so it is also what the router falls back to without any."""

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        least = min(c.in_flight for c in candidates)
        return rng.choice([c for c in candidates if c.in_flight == least])

    def weights(self, candidates: Sequence[Candidate]) -> list[float]:
        """Equal among those with the least."""
        least = min(c.in_flight for c in candidates)
        ties = sum(c.in_flight == least for c in candidates)
        return [(c.in_flight == least) / ties for c in candidates]
