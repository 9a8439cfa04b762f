"""What became of requests, as a roll-out counts it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """Times by the natural logarithms of their seconds: how many, the sum, and the sum of the squares."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean_s(self) -> float | None:
        """The geometric mean. None before the first."""
        return math.exp(self.total / self.count) if self.count else None

    def __add__(self, other: Times) -> Times:
        return Times(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def __sub__(self, other: Times) -> Times:
        return Times(self.count - other.count, self.total - other.total, self.squares - other.squares)


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of requests.

    Attributes:
        first_tokens: times to first token, one a request.
        output_tokens: times per token after an answer's first piece, one an answer that has such tokens.
    """

    succeeded: int = 0
    failed: int = 0
    first_tokens: Times = Times()
    output_tokens: Times = Times()

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed

    @property
    def failure_ratio(self) -> float:
        """0 before the first request."""
        return self.failed / self.ended if self.ended else 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.succeeded + other.succeeded,
            self.failed + other.failed,
            self.first_tokens + other.first_tokens,
            self.output_tokens + other.output_tokens,
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.succeeded - other.succeeded,
            self.failed - other.failed,
            self.first_tokens - other.first_tokens,
            self.output_tokens - other.output_tokens,
        )


NOTHING = Counts()


def gained(before: Counts | None, now: Counts) -> Counts:
    """What came between two readings of counters that only grow; nothing if they went back: the router began anew."""
    if before is None:
        return NOTHING
    since = now - before
    if min(since.succeeded, since.failed, since.first_tokens.count, since.output_tokens.count) < 0:
        return NOTHING
    return since
