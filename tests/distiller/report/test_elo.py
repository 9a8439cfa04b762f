"""Elo against a maximiser that knows nothing of the closed form, and its interval against what it promises."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.distiller.report.elo import PRIOR_WINS, TEACHER_ELO, elo, rate

scores = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=60)


def log_likelihood(rating: float, wins: float, losses: float) -> float:
    """Of Bradley–Terry, written out."""
    win = 1 / (1 + 10 ** ((TEACHER_ELO - rating) / 400))
    return wins * math.log(win) + losses * math.log(1 - win)


def searched(wins: float, losses: float) -> float:
    """The rating of greatest likelihood, by thirds."""
    low, high = -3000.0, 5000.0
    for _ in range(200):
        one, other = low + (high - low) / 3, high - (high - low) / 3
        if log_likelihood(one, wins, losses) < log_likelihood(other, wins, losses):
            low = one
        else:
            high = other
    return (low + high) / 2


@given(scores)
def test_the_elo_is_the_likeliest_one_once_each_side_has_its_half_win(won: list[float]) -> None:
    wins = sum(won)
    expected = searched(wins + PRIOR_WINS, len(won) - wins + PRIOR_WINS)
    assert elo(wins, len(won)) == pytest.approx(expected, abs=0.05)


@given(scores, st.integers(0, 2**63 - 1))
def test_a_rating_is_finite_the_same_for_the_same_seed_and_mirrored_for_the_other_side(
    won: list[float], seed: int
) -> None:
    rating = rate(won, seed)
    assert rating == rate(won, seed)
    assert all(map(math.isfinite, (rating.elo, rating.low, rating.high)))
    other = rate([1 - one for one in won], seed)
    assert rating.elo - TEACHER_ELO == pytest.approx(TEACHER_ELO - other.elo, abs=1e-6)
    assert rating.low <= rating.elo <= rating.high or len(won) < 10


def test_as_many_wins_as_losses_is_the_teachers_elo_and_one_win_for_ten_losses_about_400_less() -> None:
    assert elo(5, 10) == TEACHER_ELO
    assert elo(1000, 11_000) == pytest.approx(TEACHER_ELO - 400, abs=1)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = random.Random(0)
    chance = 0.3
    truth = TEACHER_ELO + 400 * math.log10(chance / (1 - chance))
    covered = 0
    for seed in range(300):
        rating = rate([float(draw.random() < chance) for _ in range(80)], seed)
        covered += rating.low <= truth <= rating.high
    assert 0.9 <= covered / 300 <= 0.99


@pytest.mark.parametrize("won", [[1.0] * 10 + [0.0] * 30, [0.5] * 20 + [1.0] * 5 + [0.0] * 25])
def test_the_interval_is_that_of_battles_drawn_one_by_one(won: list[float]) -> None:
    draw = random.Random(1)
    sums = sorted(sum(draw.choices(won, k=len(won))) for _ in range(20_000))
    rating = rate(won, 0)
    assert rating.low == pytest.approx(elo(sums[500], len(won)), abs=20)
    assert rating.high == pytest.approx(elo(sums[19_500], len(won)), abs=20)


def test_the_interval_becomes_narrower_with_more_battles() -> None:
    few, many = (rate([0.0, 1.0] * count, 0) for count in (5, 500))
    assert many.high - many.low < (few.high - few.low) / 5
