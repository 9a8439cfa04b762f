"""Bounds that may be looked at as often as one likes: all of them, at every count, hold at once but for a given chance."""

from __future__ import annotations

import math
from collections.abc import Callable

_HALVINGS = 60
_TIGHTEST = 50  # samples at which the bounds of a mean are tightest for a chance of 0.5 %
_MIX = 13.0 / _TIGHTEST  # (2 ln(1/chance) + ln(2 ln(1/chance) + 1)) / samples


def share_bounds(failed: int, ended: int, chance: float) -> tuple[float, float]:
    """Bounds of the probability with which a request fails, if each fails alike and by itself.

    They are the confidence sequence of the beta-binomial mixture with the prior Beta(1/2, 1/2): a share p is within as long as
    the mixture's likelihood of what was counted is less than 1/chance times that of p. This ratio is a martingale under p, and
    exceeds 1/chance at any time with a probability of `chance` at most (Ville). The prior's weight near 0 and 1 makes the
    bounds tight where nearly all or nearly none fail.

    Source: Robbins 1970; Howard et al. 2021, "Time-uniform, nonparametric, nonasymptotic confidence sequences".
    """
    if not ended:
        return 0.0, 1.0
    passed = ended - failed
    mixture = math.lgamma(failed + 0.5) + math.lgamma(passed + 0.5) - math.lgamma(ended + 1) - math.log(math.pi)
    least = mixture + math.log(chance)

    def within(share: float) -> bool:
        return _times_log(failed, share) + _times_log(passed, 1 - share) > least

    counted = failed / ended
    return _edge(counted, 0.0, within), _edge(counted, 1.0, within)


def mean_bounds(count: int, total: float, squares: float, chance: float) -> tuple[float, float]:
    """Bounds of a mean, from the sum of samples and the sum of their squares. Infinite under two samples.

    They are the asymptotic confidence sequence of the normal mixture: exact for a Brownian motion of known variance; here the
    variance is the one counted, so they hold the better the more samples there are, and want a few dozen.

    Source: Waudby-Smith et al. 2021, "Time-uniform central limit theory and asymptotic confidence sequences".
    """
    if count < 2:
        return -math.inf, math.inf
    mean = total / count
    variance = max(0.0, squares - count * mean * mean) / (count - 1)
    mixed = count * _MIX
    width = math.sqrt(variance * 2 * (mixed + 1) / (count * mixed) * math.log(math.sqrt(mixed + 1) / chance))
    return mean - width, mean + width


def _edge(inside: float, outside: float, within: Callable[[float], bool]) -> float:
    """Where `within` ends between a point that is and one that may not be; at most a hair beyond."""
    if within(outside):
        return outside
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        if within(middle):
            inside = middle
        else:
            outside = middle
    return outside


def _times_log(number: int, share: float) -> float:
    """number * ln(share), 0 for none of nothing."""
    if not number:
        return 0.0
    return number * math.log(share) if share > 0 else -math.inf
