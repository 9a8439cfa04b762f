"""peak-ewma: of two drawn workers the lesser peak-sensitive average of time to first token × (outstanding + 1).

Source: Finagle's `Balancers.p2cPeakEwma`. There τ is 10 s and the latency that of the whole call; with the time to first token
30 s does better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from weakref import WeakKeyDictionary

from ladr.routing.policies.power_of_two import two
from ladr.routing.policy import Ask, C, Candidate, Policy

TAU_S = 30.0


class PeakEwma(Policy):
    """A higher sample replaces the average at once, a lower one wears it down: w = e^(−Δt/τ), new = w·old + (1 − w)·sample.

    A worker without a sample costs nothing while it has no request, and a great deal while it has one.
    """

    def __init__(self, tau_s: float = TAU_S) -> None:
        self._tau_s = tau_s
        self._averages: WeakKeyDictionary[Candidate, tuple[float, float]] = WeakKeyDictionary()  # seconds, when

    def first_token(self, candidate: Candidate, took_s: float, now_s: float) -> None:
        old_s, at_s = self._averages.get(candidate, (0.0, now_s))
        if took_s < old_s:
            kept = math.exp(-(now_s - at_s) / self._tau_s)
            took_s = kept * old_s + (1 - kept) * took_s
        self._averages[candidate] = (took_s, now_s)

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        return min(two(candidates, rng), key=lambda c: self.cost(c, now_s))

    def cost(self, candidate: Candidate, now_s: float) -> float:
        """Seconds; without news the average wears down to nothing."""
        known = self._averages.get(candidate)
        if known is None:
            return math.inf if candidate.in_flight else 0.0
        average_s, at_s = known
        return average_s * math.exp(-(now_s - at_s) / self._tau_s) * (candidate.in_flight + 1)
