"""How long to wait before a process that crashed is started again."""

from __future__ import annotations

FIRST_S = 0.2
LONGEST_S = 10.0
HEALTHY_S = 30.0


class Backoff:
    """0.2 s, doubling to 10 s; from the start again after a life of 30 s."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, lived_s: float) -> float:
        """Seconds to wait after a life of `lived_s`."""
        if lived_s >= HEALTHY_S:
            self._next_s = FIRST_S
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, LONGEST_S)
        return wait_s
