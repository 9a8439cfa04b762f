"""S = α / L̂ + β / (1 + Q̂), and weights from it."""

from __future__ import annotations

from collections.abc import Sequence


def score(relative_latency: float, queue: float, alpha: float, beta: float) -> float:
    """Score of a worker; more is better.

    Args: relative_latency: its smoothed latency as a multiple of the fleet's fastest, from 1, so that α and β mean the same
    on any fleet. queue: its smoothed number of requests, from 0 (the 1 keeps an idle worker finite).
    """
    return alpha / relative_latency + beta / (1.0 + queue)


def relative_latencies(latencies_s: Sequence[float | None]) -> list[float]:
    """Each latency as a multiple of the least. One that is not known yet counts as the least, and so gets tried."""
    known = [latency for latency in latencies_s if latency]
    fastest = min(known, default=1.0)
    return [latency / fastest if latency else 1.0 for latency in latencies_s]


def weights(scores: Sequence[float]) -> list[float]:
    """Scores as shares that sum to 1; empty for none."""
    total = sum(scores)
    return [one / total for one in scores]
