"""Counts over the last seconds."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0


class Window:
    """Two counts over the last 10 s, kept in slots of a second, so that they stay small at any rate. `now_s`: monotonic."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: deque[list[int]] = deque()  # [second, first, second]

    def add(self, first: int, second: int, now_s: float) -> None:
        """So many more of the first kind, and of the second."""
        at = int(now_s)
        if not self._slots or self._slots[-1][0] != at:
            self._slots.append([at, 0, 0])
        self._slots[-1][1] += first
        self._slots[-1][2] += second
        self._forget(at)

    def totals(self, now_s: float) -> tuple[int, int]:
        """How many of each."""
        self._forget(int(now_s))
        return sum(slot[1] for slot in self._slots), sum(slot[2] for slot in self._slots)

    def clear(self) -> None:
        """Begin anew."""
        self._slots.clear()

    def _forget(self, at: int) -> None:
        while self._slots and self._slots[0][0] <= at - WINDOW_S:
            self._slots.popleft()
