"""How many retries are allowed: a share of the recent requests, and a few in any case."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0
RESERVE = 100


class RetryBudget:
    """Over the last 10 s, at most `share` × requests + `reserve` retries (the way of Finagle's RetryBudget).

    Counted in slots of a second, so that it stays small at any rate.
    """

    def __init__(self, share: float, reserve: int = RESERVE) -> None:
        self._share = share
        self._reserve = reserve
        self._slots: deque[list[int]] = deque()  # [second, requests, retries]

    def request(self, now_s: float) -> None:
        """A request came."""
        self._slot(now_s)[1] += 1

    def retry(self, now_s: float) -> bool:
        """Whether a retry is allowed now; if so it is counted."""
        slot = self._slot(now_s)
        requests = sum(s[1] for s in self._slots)
        retries = sum(s[2] for s in self._slots)
        if retries + 1 > self._share * requests + self._reserve:
            return False
        slot[2] += 1
        return True

    def _slot(self, now_s: float) -> list[int]:
        second = int(now_s)
        if not self._slots or self._slots[-1][0] != second:
            self._slots.append([second, 0, 0])
        while self._slots[0][0] <= second - WINDOW_S:
            self._slots.popleft()
        return self._slots[-1]
