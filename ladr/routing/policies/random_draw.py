"""random: each worker as likely as any other."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ladr.routing.policy import Ask, C, Policy


class RandomDraw(Policy):
    """Needs nothing, knows nothing: the floor to compare with."""

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        return rng.choice(candidates)
