"""The bounds that may be looked at as often as one likes, against a likelihood that is integrated on a grid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.distiller.rollout.bounds import mean_bounds, share_bounds

COUNTED = st.integers(0, 400).flatmap(lambda ended: st.tuples(st.integers(0, ended), st.just(ended)))
CHANCES = st.sampled_from([0.05, 0.005, 0.0025])
TIMES = st.lists(st.floats(-8, 8), min_size=2, max_size=60)


def summed(samples: list[float]) -> tuple[int, float, float]:
    return len(samples), math.fsum(samples), math.fsum(one * one for one in samples)


def likelihood(failed: int, ended: int, shares: Any) -> Any:
    """Of each share, for one order of what came."""
    return shares**failed * (1 - shares) ** (ended - failed)


def dumb_ratio(failed: int, ended: int, share: float) -> float:
    """How much likelier the mixture makes what was counted than a share does. In sin² of an angle the prior is flat."""
    angles = (np.arange(4096) + 0.5) * math.pi / 2 / 4096
    return float(likelihood(failed, ended, np.sin(angles) ** 2).mean() / likelihood(failed, ended, share))


@given(st.integers(0, 60).flatmap(lambda ended: st.tuples(st.integers(0, ended), st.just(ended))), CHANCES)
def test_a_share_is_within_while_a_mixture_on_a_grid_is_not_much_likelier(
    counted: tuple[int, int], chance: float
) -> None:
    for bound, trivial in zip(share_bounds(*counted, chance), (0.0, 1.0), strict=True):
        if bound == trivial:  # only where nothing of the other kind was counted
            assert counted[0] == trivial * counted[1]
        else:
            assert dumb_ratio(*counted, bound) == pytest.approx(1 / chance, rel=1e-6)


@given(COUNTED, CHANCES)
def test_a_share_that_was_counted_is_within_its_bounds_and_less_chance_widens_them(
    counted: tuple[int, int], chance: float
) -> None:
    failed, ended = counted
    least, most = share_bounds(failed, ended, chance)
    assert 0 <= least <= (failed / ended if ended else 0.5) <= most <= 1
    wider = share_bounds(failed, ended, chance / 10)
    assert wider[0] <= least and most <= wider[1]
    other_way_round = share_bounds(ended - failed, ended, chance)
    assert other_way_round == pytest.approx((1 - most, 1 - least), abs=1e-9)


@given(COUNTED, CHANCES)
def test_a_failure_more_raises_both_bounds_and_a_success_more_lowers_them(
    counted: tuple[int, int], chance: float
) -> None:
    failed, ended = counted
    now = share_bounds(failed, ended, chance)
    worse, better = share_bounds(failed + 1, ended + 1, chance), share_bounds(failed, ended + 1, chance)
    assert worse[0] >= now[0] - 1e-12 and worse[1] >= better[1]
    assert better[1] <= now[1] + 1e-12 and better[0] <= worse[0]


def test_the_bounds_of_very_many_requests_are_close_to_what_was_counted() -> None:
    least, most = share_bounds(2_000_000, 100_000_000, 0.005)
    assert 0.0199 < least < 0.02 < most < 0.0201


@given(TIMES, CHANCES)
def test_a_mean_that_was_counted_is_within_its_bounds_and_less_chance_widens_them(
    samples: list[float], chance: float
) -> None:
    least, most = mean_bounds(*summed(samples), chance)
    assert least <= math.fsum(samples) / len(samples) + 1e-9 and most >= math.fsum(samples) / len(samples) - 1e-9
    wider = mean_bounds(*summed(samples), chance / 10)
    assert wider[0] <= least and most <= wider[1]


@given(TIMES, CHANCES, st.floats(-5, 5), st.floats(0.1, 10))
def test_bounds_of_a_mean_move_and_grow_with_the_samples(
    samples: list[float], chance: float, by: float, times: float
) -> None:
    least, most = mean_bounds(*summed(samples), chance)
    moved = mean_bounds(*summed([times * one + by for one in samples]), chance)
    assert moved == pytest.approx((times * least + by, times * most + by), abs=1e-4)


@given(st.integers(2, 1000), st.floats(0.1, 3), CHANCES)
def test_a_mean_is_within_while_a_normal_mixture_on_a_grid_is_not_much_likelier(
    count: int, deviation: float, chance: float
) -> None:
    """The bound of a mean of 0, where the mixture of the means has the variance 13/50 of the samples' own."""
    squares = deviation**2 * (count - 1)
    bound = mean_bounds(count, 0.0, squares, chance)[1] / deviation
    around = bound * count / (count + 50 / 13)  # where what is integrated is greatest
    places = around + np.linspace(-12, 12, 4001) / math.sqrt(count)
    prior = np.exp(-(places**2) / (2 * 13 / 50)) / math.sqrt(2 * math.pi * 13 / 50)
    likelier = np.exp(count * (bound * places - places**2 / 2))
    mixture = float((likelier * prior).sum() * (places[1] - places[0]))
    assert math.log(mixture) == pytest.approx(math.log(1 / chance), abs=1e-3)


def test_one_sample_bounds_no_mean() -> None:
    assert mean_bounds(1, 3.0, 9.0, 0.01) == (-math.inf, math.inf)
    assert share_bounds(0, 0, 0.01) == (0, 1)
