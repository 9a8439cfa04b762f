"""Whether a worker that fails is left alone: a circuit breaker for each, and ejection of the fleet's outliers.

Only a worker's own faults are told here: a client's bad request, its deadline and its cancellation are none.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TypeVar

from ladr.routing.window import Window

TOLERATED = 1  # failures in a row that may be the request's fault
BACKOFF_S = (0.2, 5.0)  # first and longest time that a broken worker is left alone
LEAST_FAILURES = 5  # in the window, before a share of failures says anything
EJECT_SHARE = 0.2  # a worker that fails more than this, and more than thrice the median, is an outlier
EJECT_S = (2.0, 60.0)

K = TypeVar("K")


class Breaker:
    """Closed: requests pass. Open: none does for a time that doubles. Half-open: one does, and decides.

    `now_s` is monotonic seconds throughout.
    """

    __slots__ = ("_failures", "_open", "_probing", "retry_s")

    def __init__(self) -> None:
        self._failures = 0  # in a row
        self._open = False
        self._probing = False
        self.retry_s = float("-inf")  # open until then

    def allows(self, now_s: float) -> bool:
        """Whether a request may go there now."""
        return not self._open or (now_s >= self.retry_s and not self._probing)

    @property
    def half_open(self) -> bool:
        """Whether the next request decides (once `retry_s` is past)."""
        return self._open

    def sent(self) -> bool:
        """A request goes there; true if it is the one that decides. That one must be `settled` in the end."""
        if self._open:
            self._probing = True
        return self._open

    def settled(self) -> None:
        """The request that was to decide is over, with or without a verdict."""
        self._probing = False

    def succeeded(self) -> None:
        """A token came."""
        self._failures = 0
        self._open = False

    def failed(self, now_s: float, tolerated: int = TOLERATED) -> None:
        """A request failed by the worker's fault; more than `tolerated` in a row open the breaker."""
        if self._open and now_s < self.retry_s:
            return  # requests that fail together are one failure
        self._failures = min(self._failures + 1, 16)
        if self._open or self._failures > tolerated:
            first_s, longest_s = BACKOFF_S
            self._open = True
            self.retry_s = now_s + min(first_s * 2 ** (self._failures - 1), longest_s)


class Record:
    """Requests and failures of the last 10 s, and when they last had a worker ejected."""

    __slots__ = ("_window", "ejected_until_s", "ejections")

    def __init__(self) -> None:
        self._window = Window()
        self.ejected_until_s = float("-inf")
        self.ejections = 0

    def add(self, failed: bool, now_s: float) -> None:
        """A request got its first token there, or failed before."""
        self._window.add(not failed, failed, now_s)

    def failures(self, now_s: float) -> tuple[int, float]:
        """How many failed, and which share of all."""
        served, failed = self._window.totals(now_s)
        return failed, failed / (served + failed) if failed else 0.0

    def ejected(self, now_s: float) -> None:
        """Leave it alone, for twice as long as the last time, and begin anew."""
        shortest_s, longest_s = EJECT_S
        self.ejected_until_s = now_s + min(shortest_s * 2**self.ejections, longest_s)
        self.ejections = min(self.ejections + 1, 16)
        self._window.clear()


def eject(records: Mapping[K, Record], now_s: float) -> set[K]:
    """Eject those that fail far more often than the rest, never more than half of all; gives those newly ejected.

    Each ejection of the same worker lasts twice as long as the one before. Source: Envoy's outlier detection, by success rate.
    """
    shares = {key: record.failures(now_s) for key, record in records.items()}
    typical = statistics.median(share for _, share in shares.values()) if shares else 0.0
    room = len(records) // 2 - sum(now_s < record.ejected_until_s for record in records.values())
    worst = sorted(shares, key=lambda key: -shares[key][1])
    ejected: set[K] = set()
    for key in worst[: max(room, 0)]:
        failed, share = shares[key]
        record = records[key]
        if failed < LEAST_FAILURES or share <= max(EJECT_SHARE, 3 * typical) or now_s < record.ejected_until_s:
            continue
        record.ejected(now_s)
        ejected.add(key)
    return ejected
