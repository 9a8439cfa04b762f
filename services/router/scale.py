"""How many workers a model's load asks for. Pure: what was seen comes in with its time, advice goes out.

Up on seconds of work that wait, or on first tokens that come too late; both say that people wait. Spread of the workers' costs
alone is no reason: uniform overload has none, and more workers do not mend an uneven load. Down by one, if the load has fitted
one fewer for a long while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ladr.config import ScaleSettings

STEADY, WAITING, SLO, IDLE, COOLING, UNEVEN = "steady", "waiting", "slo", "idle", "cooling", "uneven"
_SUSTAINED_S = 0.6  # a reason to grow must hold for so long


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one model.

    Attributes:
        workers: that may get requests. slots: of all of them together.
        requests: running and waiting, at the workers and at the router.
        waiting_s: work that waits, as seconds of the present fleet.
        misses: share of the recent first tokens that came too late, 0 to 1.
        variation: standard deviation of the workers' costs ÷ their mean.
    """

    workers: int
    slots: int
    requests: float
    waiting_s: float
    misses: float
    variation: float

    @property
    def utilization(self) -> float:
        """Share of the slots in use; over 1 while requests wait."""
        return self.requests / self.slots if self.slots else float(self.requests > 0)


@dataclass(frozen=True, slots=True)
class Advice:
    """How many workers there ought to be, and why."""

    wanted: int
    reason: str


class Scale:
    """Advice for one model. Feed it at each tick; `now_s` is monotonic seconds.

    Hysteresis: growing needs a reason that holds for 0.6 s, shrinking a load that fits `down_after` long; after each change
    nothing further until `cooldown` is over, and nothing further down until it has come about.
    """

    def __init__(self, settings: ScaleSettings) -> None:
        self._settings = settings
        self._wanted = 0
        self._changed_s = float("-inf")
        self._pressed_s: float | None = None  # since when there is a reason to grow
        self._fits_s: float | None = None  # since when fewer would do

    def see(self, seen: Seen, now_s: float) -> Advice:
        """What to do now."""
        settings = self._settings
        if self._changed_s == float("-inf"):  # a fleet that comes up is not one that grew too large
            self._wanted = max(self._wanted, self._bounded(seen.workers))
        reason = self._pressure(seen)
        self._pressed_s = (self._pressed_s or now_s) if reason else None
        spare = not reason and seen.workers <= self._wanted and self._spare(seen)
        self._fits_s = (now_s if self._fits_s is None else self._fits_s) if spare else None
        cooling = now_s < self._changed_s + settings.cooldown.total_seconds()
        if reason and self._pressed_s is not None and now_s - self._pressed_s >= _SUSTAINED_S:
            more = self._more(seen)
            if more > self._wanted and not cooling:
                return self._change(more, reason, now_s)
            return Advice(self._wanted, COOLING if more > self._wanted else reason)
        if self._fits_s is not None and now_s - self._fits_s >= settings.down_after.total_seconds():
            fewer = self._bounded(min(self._wanted, seen.workers) - 1)
            if fewer < self._wanted:
                return Advice(self._wanted, COOLING) if cooling else self._change(fewer, IDLE, now_s)
        if seen.variation > settings.variation and seen.workers > 1:
            return Advice(self._wanted, UNEVEN)
        return Advice(self._wanted, reason or STEADY)

    def _pressure(self, seen: Seen) -> str:
        """Why there ought to be more; empty if there is no reason."""
        if seen.workers < self._settings.min_workers:
            return WAITING
        if seen.waiting_s > self._settings.waiting.total_seconds():
            return WAITING
        if seen.misses > self._settings.slo_misses and seen.utilization >= self._settings.utilization:
            return SLO
        return ""

    def _spare(self, seen: Seen) -> bool:
        """Whether the load fits one worker fewer: load × N ÷ (N − 1)."""
        left = seen.workers - 1
        if left < 1 or seen.waiting_s > 0 or seen.misses > self._settings.slo_misses:
            return False
        return seen.utilization * seen.workers / left <= self._settings.utilization

    def _more(self, seen: Seen) -> int:
        """As many as the load needs, at least one more than now and at most twice as many."""
        fitting = math.ceil(seen.workers * seen.utilization / self._settings.utilization)
        return self._bounded(min(max(fitting, seen.workers + 1), max(2 * seen.workers, 1)))

    def _change(self, wanted: int, reason: str, now_s: float) -> Advice:
        self._wanted = wanted
        self._changed_s = now_s
        self._pressed_s = self._fits_s = None
        return Advice(wanted, reason)

    def _bounded(self, workers: int) -> int:
        return min(max(workers, self._settings.min_workers), self._settings.max_workers)
