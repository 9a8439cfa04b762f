"""grpc-wrr: weighted round robin, weight = qps / (utilization + failures/qps · penalty), by earliest deadline first.

Source: gRFC A58, the client-side weighted_round_robin policy of gRPC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

from ladr.routing.policy import Ask, C, Candidate, Policy

UPDATE_S = 1.0
BLACKOUT_S = 10.0
EXPIRY_S = 180.0
PENALTY = 1.0


@dataclass(slots=True)
class _Known:
    """What is known of a worker's weight. `since_s`: it has had one without a break since then."""

    weight: float = 0.0
    since_s: float = 0.0
    at_s: float = float("-inf")


class GrpcWrr(Policy):
    """Utilization is requests there per slot. A weight counts after a blackout of 10 s and expires after 3 min without one.

    A worker without a weight gets the mean of the others; with less than two weights it is plain round robin.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Candidate, _Known] = WeakKeyDictionary()
        self._updated_s = float("-inf")
        self._fleet: tuple[int, ...] = ()
        self._deadlines: list[tuple[float, int, Any]] = []  # a heap: when its turn is, tie-break, candidate
        self._weights: list[float] = []

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        fleet = tuple(map(id, candidates))
        if now_s - self._updated_s >= UPDATE_S or fleet != self._fleet:
            self._update(candidates, rng, now_s)
            self._fleet = fleet
        deadline, position, chosen = self._deadlines[0]
        heapreplace(self._deadlines, (deadline + 1 / self._weights[position], position, chosen))
        found: C = chosen
        return found

    def _update(self, candidates: Sequence[C], rng: Random, now_s: float) -> None:
        self._updated_s = now_s
        self._weights = self._shares([self._weight(candidate, now_s) for candidate in candidates])
        self._deadlines = [  # each begins somewhere in its period, so that several routers are not in step
            (rng.random() / weight, position, candidate)
            for position, (candidate, weight) in enumerate(zip(candidates, self._weights, strict=True))
        ]
        heapify(self._deadlines)

    def _weight(self, candidate: Candidate, now_s: float) -> float:
        """0 while it has none."""
        known = self._known.setdefault(candidate, _Known(since_s=now_s))
        now = weight(candidate.finished_per_s, candidate.failed_per_s, candidate.reported / candidate.slots)
        if now > 0:
            if now_s - known.at_s > EXPIRY_S:
                known.since_s = now_s
            known.weight, known.at_s = now, now_s
        if now_s - known.at_s > EXPIRY_S or now_s - known.since_s < BLACKOUT_S:
            return 0.0
        return known.weight

    @staticmethod
    def _shares(found: list[float]) -> list[float]:
        known = [weight for weight in found if weight > 0]
        if len(known) < 2:
            return [1.0] * len(found)
        mean = sum(known) / len(known)
        return [weight or mean for weight in found]

    def weights(self, candidates: Sequence[Candidate]) -> list[float]:
        """By the formula, without blackout and expiry."""
        shares = self._shares([weight(c.finished_per_s, c.failed_per_s, c.reported / c.slots) for c in candidates])
        return [share / sum(shares) for share in shares]


def weight(finished_per_s: float, failed_per_s: float, utilization: float) -> float:
    """qps / (utilization + eps/qps · penalty); 0 where either is nothing. qps counts failures too."""
    qps = finished_per_s + failed_per_s
    if qps <= 0:
        return 0.0
    load = utilization + failed_per_s / qps * PENALTY
    return qps / load if load > 0 else 0.0
