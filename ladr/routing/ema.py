"""Exponential smoothing in time."""

from __future__ import annotations

PERIOD_S = 0.2


class Ema:
    """new = θ·old + (1 − θ)·sample for samples 200 ms apart; for others θ counts as often as 200 ms fit between them.

    `value` is None before the first sample.
    """

    __slots__ = ("_at_s", "_theta", "value")

    def __init__(self, theta: float) -> None:
        self._theta = theta
        self._at_s = 0.0
        self.value: float | None = None

    def add(self, sample: float, now_s: float) -> None:
        """Take a sample of the time `now_s` (seconds of any clock that does not go back)."""
        if self.value is None:
            self.value = sample
        else:
            kept: float = self._theta ** (max(now_s - self._at_s, 0.0) / PERIOD_S)
            self.value = kept * self.value + (1 - kept) * sample
        self._at_s = now_s
