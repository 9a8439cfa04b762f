"""prequal: probes in a pool; of those with few requests in flight the fastest, else the one with the fewest.

Source: Wydrowski et al., "Load is not what you should balance: Introducing Prequal", NSDI '24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ladr.routing.policy import Ask, C, Candidate, Policy

POOL = 16
PROBES = 3.0  # a request
REMOVALS = 1.0  # a request
AGE_S = 1.0
HOT = 0.6  # quantile of requests in flight above which a worker is hot; the paper's 0.84 herded in simulation
DELTA = 1.0


@dataclass(slots=True)
class Probe:
    """An answer. `requests` also counts what was sent on the strength of it."""

    candidate: Candidate
    requests: int
    latency_s: float
    at_s: float
    uses: float


class Prequal(Policy):
    """Cold: requests ≤ the pool's HOT quantile. The cold one of the least latency; all hot: the one with the fewest requests.

    A probe serves b = max(1, (1 + δ) / ((1 − m/n)·r_probe − r_remove)) times (m pool size, n workers); the fraction is drawn.
    With each request one is removed, in turn the oldest and the worst. With less than two in the pool the worker is drawn.
    """

    def __init__(self) -> None:
        self._pool: list[Probe] = []
        self._fleet = 1
        self._owed = 0.0
        self._oldest_next = True

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        self._fleet = len(candidates)
        self._owed = min(self._owed + PROBES, POOL)
        here = {id(candidate): candidate for candidate in candidates}
        self._pool = [probe for probe in self._pool if now_s - probe.at_s <= AGE_S]
        pool = [probe for probe in self._pool if id(probe.candidate) in here]
        if len(pool) < 2:
            return rng.choice(candidates)
        best = choose(pool)
        best.requests += 1
        best.uses -= 1
        if best.uses < 1 and rng.random() >= max(best.uses, 0.0):
            self._pool.remove(best)
        self._remove()
        return here[id(best.candidate)]

    def _remove(self) -> None:
        """Keep the pool fresh: take out the oldest or the worst, in turn."""
        if len(self._pool) > 2:
            self._pool.remove(min(self._pool, key=lambda p: p.at_s) if self._oldest_next else worst(self._pool))
            self._oldest_next = not self._oldest_next

    def probes(self, candidates: Sequence[C], rng: Random) -> Sequence[C]:
        count = min(int(self._owed), len(candidates))
        self._owed -= int(self._owed)
        return rng.sample(candidates, count)

    def probed(self, candidate: Candidate, in_flight: int, latency_s: float, now_s: float) -> None:
        rate = (1 - min(POOL / self._fleet, 1.0)) * PROBES - REMOVALS
        uses = max(1.0, (1 + DELTA) / rate) if rate > 0 else float(POOL)
        if len(self._pool) >= POOL:
            self._pool.remove(min(self._pool, key=lambda p: p.at_s))
        self._pool.append(Probe(candidate, in_flight, latency_s, now_s, uses))


def threshold(pool: Sequence[Probe]) -> int:
    """The HOT quantile of requests in flight."""
    ordered = sorted(probe.requests for probe in pool)
    return ordered[min(math.floor(HOT * len(ordered)), len(ordered) - 1)]


def choose(pool: Sequence[Probe]) -> Probe:
    """The best probe: hot ones after all cold ones, cold by latency, hot by requests."""
    limit = threshold(pool)
    return min(pool, key=lambda p: (p.requests > limit, p.requests if p.requests > limit else p.latency_s, p.requests))


def worst(pool: Sequence[Probe]) -> Probe:
    """The opposite: of the hot ones that with the most requests; with none hot the slowest."""
    limit = threshold(pool)
    return max(pool, key=lambda p: (p.requests > limit, p.requests if p.requests > limit else p.latency_s, p.requests))
