"""The figures of a run, added up one outcome at a time in memory that does not grow with it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hdrh.histogram import HdrHistogram

from ladr.bench.witness import Outcome

_LONGEST_US = 3_600_000_000
_WINDOWS = 40


class Latencies:
    """Durations in an HdrHistogram: from 1 µs to an hour, with three significant digits unless told otherwise."""

    def __init__(self, digits: int = 3) -> None:
        self._histogram = HdrHistogram(1, _LONGEST_US, digits)

    def __len__(self) -> int:
        return int(self._histogram.get_total_count())

    def record(self, seconds: float) -> None:
        """Values outside the range count as its ends."""
        self._histogram.record_value(min(max(round(seconds * 1e6), 1), _LONGEST_US))

    def add(self, other: Latencies) -> None:
        """Take in all of another's."""
        self._histogram.add(other._histogram)

    def percentile(self, percent: float) -> float | None:
        """The least value, in seconds, that so many percent do not pass; None while there is nothing."""
        total = len(self)
        if not total:
            return None
        rank = max(
            1, math.ceil(percent / 100 * total - 1e-9)
        )  # theirs rounds to the nearest, which may be the one before
        return float(self._histogram.get_value_at_percentile(100 * rank / total)) / 1e6

    def distribution(self) -> Iterator[tuple[float, float]]:
        """(seconds, share of all that took no longer), at each value there is."""
        total = len(self)
        for step in self._histogram.get_recorded_iterator():
            yield step.value_iterated_to / 1e6, step.total_count_to_this_value / total


@dataclass(frozen=True)
class Slo:
    """What a good answer keeps, in seconds from the intended time; `e2e_s` None: as long as it takes."""

    ttft_s: float
    e2e_s: float | None = None

    def met(self, outcome: Outcome) -> bool:
        """Answered whole and in time."""
        if outcome.reason or outcome.lost or outcome.repeated or outcome.ttft_s is None or outcome.e2e_s is None:
            return False
        return outcome.ttft_s <= self.ttft_s and (self.e2e_s is None or outcome.e2e_s <= self.e2e_s)


class Measurement:
    """All of one run, or of several added up. Failed requests count in everything but latencies.

    Args:
        begin_s, end_s: only requests meant for this time count (what comes before is warm-up).
    """

    def __init__(self, slo: Slo, begin_s: float, end_s: float) -> None:
        self.slo = slo
        self.begin_s = begin_s
        self.end_s = end_s
        self.window_s = max(end_s - begin_s, 1e-3)
        self.offered = 0
        self.answered = 0
        self.good = 0
        self.first_in_time = 0
        self.ended = 0  # answers that ended within that time, those of the warm-up too
        self.tokens = 0  # of those
        self.lost = 0
        self.repeated = 0
        self.resumed = 0
        self.errors: Counter[str] = Counter()
        self.ttft = Latencies()
        self.tpot = Latencies()
        self.e2e = Latencies()
        self.late = Latencies()
        self.over_time = [Latencies(2) for _ in range(_WINDOWS)]

    def record(self, outcome: Outcome) -> None:
        """One more request."""
        if outcome.e2e_s is not None and self._counts(outcome.at_s + outcome.e2e_s):
            self.ended += 1
            self.tokens += outcome.tokens
        if not self._counts(outcome.at_s):
            return
        self.offered += 1
        self.good += self.slo.met(outcome)
        self.lost += outcome.lost
        self.repeated += outcome.repeated
        self.resumed += outcome.resumed
        self.late.record(outcome.late_s)
        if outcome.reason:
            self.errors[outcome.reason] += 1
        else:
            self.answered += 1
        if outcome.ttft_s is not None:
            self.first_in_time += outcome.ttft_s <= self.slo.ttft_s
            self.ttft.record(outcome.ttft_s)
            self.over_time[self._window(outcome.at_s)].record(outcome.ttft_s)
        if outcome.tpot_s is not None:
            self.tpot.record(outcome.tpot_s)
        if outcome.e2e_s is not None:
            self.e2e.record(outcome.e2e_s)

    def add(self, other: Measurement) -> None:
        """Take in another run of the same load."""
        for name in ("window_s", "offered", "answered", "good", "first_in_time", "ended"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("tokens", "lost", "repeated", "resumed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.errors += other.errors
        for mine, theirs in (
            (self.ttft, other.ttft),
            (self.tpot, other.tpot),
            (self.e2e, other.e2e),
            (self.late, other.late),
            *zip(self.over_time, other.over_time, strict=True),
        ):
            mine.add(theirs)

    @property
    def first_in_time_ratio(self) -> float:
        """Share of all offered whose first token came within the SLO; 0 of nothing, which shows nothing."""
        return self.first_in_time / self.offered if self.offered else 0.0

    def ttft_over_time(self, percent: float) -> list[tuple[float, float]]:
        """(seconds after the start, percentile of TTFT in seconds) of each window that has any."""
        width_s = (self.end_s - self.begin_s) / _WINDOWS
        windows = (
            (self.begin_s + (n + 0.5) * width_s, each.percentile(percent)) for n, each in enumerate(self.over_time)
        )
        return [(at_s, value) for at_s, value in windows if value is not None]

    def _counts(self, at_s: float) -> bool:
        return self.begin_s <= at_s <= self.end_s

    def _window(self, at_s: float) -> int:
        share = (at_s - self.begin_s) / max(self.end_s - self.begin_s, 1e-9)
        return min(int(share * _WINDOWS), _WINDOWS - 1)
