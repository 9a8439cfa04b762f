"""Round robin: each worker in turn, by name."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ladr.routing.policy import Ask, C, Policy


class RoundRobin(Policy):
    """The worker whose name follows the last one picked. Keeps no index, so that a changing fleet does not skip anybody."""

    def __init__(self) -> None:
        self._last = ""

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C:
        after = [c for c in candidates if c.worker_id > self._last]
        chosen = min(after or candidates, key=lambda c: c.worker_id)
        self._last = chosen.worker_id
        return chosen
