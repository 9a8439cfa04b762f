"""ladr-weighted: a weighted draw by S = α / L̂ + β / (1 + Q̂)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ladr.routing.policy import Ask, C, Candidate, Knob, Policy
from ladr.routing.score import relative_latencies, score, weights


class LadrWeighted(Policy):
    """Draws a worker with probability proportional to its score ^ κ; L̂ counts as a multiple of the fastest.

    Only α/β matters to the draw, and the sharpness κ: those are its knobs.
    """

    knobs = (Knob("ratio", 1 / 32, 32.0, log=True), Knob("sharpness", 0.5, 16.0, log=True))

    def __init__(self, alpha: float, beta: float, sharpness: float = 1.0) -> None:
        self._alpha = alpha
        self._beta = beta
        self._sharpness = sharpness

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        return rng.choices(candidates, self._powers(candidates))[0]

    def weights(self, candidates: Sequence[Candidate]) -> list[float]:
        """S^κ / Σ S^κ."""
        return weights(self._powers(candidates))

    def parameters(self) -> dict[str, float]:
        return {"ratio": self._alpha / self._beta, "sharpness": self._sharpness}

    def tune(self, parameters: Mapping[str, float]) -> None:
        """α + β stays as it is."""
        total = self._alpha + self._beta
        self._beta = total / (1 + parameters["ratio"])
        self._alpha = total - self._beta
        self._sharpness = parameters["sharpness"]

    def _powers(self, candidates: Sequence[Candidate]) -> list[float]:
        relative = relative_latencies([c.latency_s for c in candidates])
        scores = [score(r, c.queue, self._alpha, self._beta) for r, c in zip(relative, candidates, strict=True)]
        return scores if self._sharpness == 1 else [one**self._sharpness for one in scores]
