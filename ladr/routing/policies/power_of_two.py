"""Power of two choices: of two drawn workers the one with fewer open requests of this router.

Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ladr.routing.policy import Ask, C, Candidate, Policy


def two(candidates: Sequence[C], rng: Random) -> Sequence[C]:
    """Two different ones by chance; all if there are no more."""
    return rng.sample(candidates, 2) if len(candidates) > 2 else candidates


class PowerOfTwo(Policy):
    """The lesser `in_flight` of two; of equals either."""

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        return min(two(candidates, rng), key=lambda c: (c.in_flight, rng.random()))

    def weights(self, candidates: Sequence[Candidate]) -> list[float]:
        """How often each is the lesser of two: (2·more + ties) / (n·(n − 1)), ties without itself."""
        n = len(candidates)
        if n == 1:
            return [1.0]
        counts = [c.in_flight for c in candidates]
        return [
            (2 * sum(other > own for other in counts) + sum(other == own for other in counts) - 1) / (n * (n - 1))
            for own in counts
        ]
