"""How many retries are allowed: a share of the recent requests, and a few in any case."""

from __future__ import annotations

from ladr.routing.window import Window

RESERVE = 100


class RetryBudget:
    """Over the last 10 s, at most `share` × requests + `reserve` retries (the way of Finagle's RetryBudget)."""

    def __init__(self, share: float, reserve: int = RESERVE) -> None:
        self._share = share
        self._reserve = reserve
        self._window = Window()

    def request(self, now_s: float) -> None:
        """A request came."""
        self._window.add(1, 0, now_s)

    def retry(self, now_s: float) -> bool:
        """Whether a retry is allowed now; if so it is counted."""
        requests, retries = self._window.totals(now_s)
        if retries + 1 > self._share * requests + self._reserve:
            return False
        self._window.add(0, 1, now_s)
        return True
