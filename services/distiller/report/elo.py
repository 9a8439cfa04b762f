"""Elo of a model that fought one other, whose Elo is fixed: Bradley–Terry for two players, in closed form.

P(win) = 1 / (1 + 10^((Elo_other − Elo) / 400)); the Elo of greatest likelihood is Elo_other + 400 · log10(wins / losses). A tie
is half a win. Half a win more is given to each side, so that the Elo of one that won or lost them all stays finite; it pulls
a little towards a draw. The bootstrap has no such help: of battles that all ended alike it gives an interval of no width.

Source: Bradley and Terry 1952; the half win is Jeffreys' prior (Firth 1993).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TEACHER_ELO = 1000.0
"""By convention: only differences of Elo mean anything, so a share of it depends on this number."""
PRIOR_WINS = 0.5
"""Of each side."""
DRAWS = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Rating:
    """An Elo, and the ends of its interval."""

    elo: float
    low: float
    high: float


def elo(wins: float, battles: int) -> float:
    """Elo of one that won so many (ties are half a win) of its battles against one of TEACHER_ELO."""
    return TEACHER_ELO + 400 * math.log10((wins + PRIOR_WINS) / (battles - wins + PRIOR_WINS))


def rate(scores: Sequence[float], seed: int) -> Rating:
    """Elo, with the percentile interval of a bootstrap over the battles.

    Args: scores: of each battle: 1, 0.5 or 0; at least one.
    """
    values, counts = np.unique(np.asarray(scores, dtype=float), return_counts=True)
    drawn = np.random.default_rng([seed]).multinomial(len(scores), counts / len(scores), size=DRAWS)  # with replacement
    low, high = np.quantile(drawn @ values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Rating(*(elo(wins, len(scores)) for wins in (sum(scores), float(low), float(high))))
