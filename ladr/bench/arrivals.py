"""When requests arrive and how long they are: an open loop, decided before the first answer. Values only, no clock."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

Kind = Literal["poisson", "constant", "pulse"]
_LONGEST = 8  # draws of a length end at so many medians, so that contexts can be sized


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. `at_s`: seconds after the start. `priority`: None for the default."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    model: str = ""
    session_id: str = ""
    priority: Literal["high", "normal", "batch"] | None = None


@dataclass(frozen=True)
class Length:
    """A log-normal length in tokens; always the median with `sigma` 0."""

    median: int
    sigma: float = 0.0

    @property
    def mean(self) -> float:
        """Of the distribution, its cut tail not considered."""
        return self.median * math.exp(self.sigma**2 / 2)

    @property
    def longest(self) -> int:
        """No draw is greater."""
        return self.median * _LONGEST if self.sigma else self.median

    def draw(self, rng: Random) -> int:
        """From 1 to `longest`."""
        if not self.sigma:
            return self.median
        return max(1, min(self.longest, round(self.median * math.exp(rng.gauss(0, self.sigma)))))


@dataclass(frozen=True)
class Shape:
    """What a load looks like at any rate.

    Attributes:
        kind: a pulse stands on top of Poisson arrivals, a third of the way in.
        pulse: how many requests are in it, over `pulse_over_s` seconds (0: at one instant).
    """

    kind: Kind
    prompt: Length
    answer: Length
    pulse: int = 0
    pulse_over_s: float = 0.0

    def arrivals(self, rate_per_s: float, duration_s: float, seed: int, model: str = "") -> Iterator[Arrival]:
        """The same arrivals for the same arguments, in order of time."""
        lengths = Random(f"{seed} lengths")  # noqa: S311  # repeatable on purpose
        for at_s in self._times(rate_per_s, duration_s, Random(f"{seed} times")):  # noqa: S311  # the same
            yield Arrival(at_s, self.prompt.draw(lengths), self.answer.draw(lengths), model)

    def _times(self, rate_per_s: float, duration_s: float, rng: Random) -> Iterator[float]:
        if self.kind == "constant":
            return constant(rate_per_s, duration_s)
        base = poisson(rate_per_s, duration_s, rng)
        return heapq.merge(base, pulse(self.pulse, duration_s / 3, self.pulse_over_s)) if self.kind == "pulse" else base


def poisson(rate_per_s: float, duration_s: float, rng: Random) -> Iterator[float]:
    """Times of a Poisson process from 0 to `duration_s`; none at rate 0."""
    at_s = rng.expovariate(rate_per_s) if rate_per_s else math.inf
    while at_s < duration_s:
        yield at_s
        at_s += rng.expovariate(rate_per_s)


def constant(rate_per_s: float, duration_s: float) -> Iterator[float]:
    """Evenly spaced times, the first at 0; computed each on its own, so that no error adds up."""
    for number in range(math.ceil(rate_per_s * duration_s)):
        yield number / rate_per_s


def pulse(count: int, at_s: float, over_s: float) -> Iterator[float]:
    """`count` times, evenly spaced over `over_s` seconds."""
    for number in range(count):
        yield at_s + over_s * number / count
