"""ladr-weighted: a weighted draw by S = α / L̂ + β / (1 + Q̂)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ladr.routing.policy import Ask, C, Candidate, Policy
from ladr.routing.score import relative_latencies, score, weights


class LadrWeighted(Policy):
    """Draws a worker with probability proportional to its score; L̂ counts as a multiple of the fastest."""

    def __init__(self, alpha: float, beta: float) -> None:
        self._alpha = alpha
        self._beta = beta

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        return rng.choices(candidates, self._scores(candidates))[0]

    def weights(self, candidates: Sequence[Candidate]) -> list[float]:
        """S / Σ S."""
        return weights(self._scores(candidates))

    def _scores(self, candidates: Sequence[Candidate]) -> list[float]:
        relative = relative_latencies([c.latency_s for c in candidates])
        return [score(r, c.queue, self._alpha, self._beta) for r, c in zip(relative, candidates, strict=True)]
