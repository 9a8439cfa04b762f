"""Scaling advice, with a clock turned by hand."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ladr.config import ScaleSettings
from services.router.scale import COOLING, IDLE, SLO, STEADY, UNEVEN, WAITING, Advice, Scale, Seen

TICK_S = 0.2


def seen(
    workers: int = 4, busy: float = 0.5, waiting_s: float = 0.0, misses: float = 0.0, variation: float = 0.0
) -> Seen:
    return Seen(workers, 8 * workers, busy * 8 * workers, waiting_s, misses, variation)


def settings(**changes: object) -> ScaleSettings:
    return ScaleSettings(down_after=timedelta(seconds=30), **changes)  # type: ignore[arg-type]


def after(scale: Scale, one: Seen, seconds: float, from_s: float = 0.0) -> Advice:
    """The advice after it was so for that long."""
    for tick in range(round(seconds / TICK_S) + 1):
        advice = scale.see(one, from_s + tick * TICK_S)
    return advice


def test_work_that_waits_asks_for_more_once_it_has_for_a_while() -> None:
    scale = Scale(settings())
    pressed = seen(busy=1.5, waiting_s=3.0)
    assert scale.see(pressed, 0.0) == Advice(4, WAITING)
    assert after(scale, pressed, 1.0).wanted == 8


def test_a_moment_of_waiting_changes_nothing() -> None:
    scale = Scale(settings())
    after(scale, seen(), 5.0)
    assert scale.see(seen(waiting_s=9.0), 5.2).wanted == 4
    assert after(scale, seen(), 5.0, from_s=5.4) == Advice(4, STEADY)


def test_late_first_tokens_ask_for_more_only_where_the_fleet_is_busy() -> None:
    assert after(Scale(settings()), seen(busy=0.9, misses=0.2), 1.0).wanted == 6
    assert after(Scale(settings()), seen(busy=0.2, misses=0.2), 1.0).wanted == 4  # the prompts are long, or the SLO is


def test_the_reason_is_told() -> None:
    scale = Scale(settings())
    advices = [scale.see(seen(busy=0.9, misses=0.2), tick * TICK_S) for tick in range(6)]
    assert Advice(6, SLO) in advices


def test_after_a_change_the_next_one_waits_for_the_cooldown() -> None:
    scale = Scale(settings(cooldown=timedelta(seconds=10)))
    pressed = seen(busy=2.0, waiting_s=5.0)
    first = after(scale, pressed, 2.0)
    assert first.wanted == 8
    grown = seen(workers=8, busy=2.0, waiting_s=5.0)
    assert after(scale, grown, 6.0, from_s=2.0) == Advice(8, COOLING)
    assert after(scale, grown, 6.0, from_s=8.0).wanted == 16


def test_uneven_load_is_said_and_asks_for_nothing() -> None:
    assert after(Scale(settings()), seen(variation=2.0), 5.0) == Advice(4, UNEVEN)


def test_shrinking_takes_a_long_while_and_one_at_a_time() -> None:
    scale = Scale(settings())
    idle = seen(workers=4, busy=0.05)
    assert after(scale, idle, 25.0) == Advice(4, STEADY)
    assert after(scale, idle, 10.0, from_s=25.2).wanted == 3


def test_a_load_that_would_not_fit_one_fewer_keeps_them_all() -> None:
    assert after(Scale(settings()), seen(workers=4, busy=0.6), 100.0).wanted == 4  # three would be at 80 %
    assert after(Scale(settings()), seen(workers=4, busy=0.5), 100.0).wanted == 3  # three are at 67 %


def test_a_busy_moment_begins_the_long_while_anew() -> None:
    scale = Scale(settings())
    idle = seen(busy=0.05)
    after(scale, idle, 25.0)
    scale.see(seen(busy=0.9), 25.2)
    assert after(scale, idle, 25.0, from_s=25.4) == Advice(4, STEADY)


def test_with_nobody_there_the_least_is_asked_for() -> None:
    scale = Scale(settings(min_workers=2))
    assert after(scale, Seen(0, 0, 3.0, 9.0, 0.0, 0.0), 1.0).wanted == 2


@given(st.integers(1, 12), st.floats(0.05, 0.95), st.integers(0, 99))
def test_at_a_constant_load_the_fleet_comes_to_rest(start: int, load: float, seed: int) -> None:
    """The load as a share of eight workers; the fleet follows each advice."""
    rng = Random(seed)
    scale = Scale(ScaleSettings(down_after=timedelta(seconds=20), cooldown=timedelta(seconds=5)))
    workers, changes = start, []
    for tick in range(4000):
        requests = load * 64 * rng.uniform(0.97, 1.03)
        slots = 8 * workers
        waiting_s = max(0.0, requests - slots) / slots * 4.0
        advice = scale.see(Seen(workers, slots, requests, waiting_s, 0.0, 0.1), tick * TICK_S)
        if advice.wanted != workers:
            changes.append(tick)
            workers = advice.wanted
    assert 1 <= workers <= 64
    assert not [tick for tick in changes if tick > 3000], "it swings"


@given(
    st.lists(
        st.builds(
            Seen,
            st.integers(0, 9),
            st.integers(0, 90),
            st.floats(0, 200),
            st.floats(0, 9),
            st.floats(0, 1),
            st.floats(0, 3),
        ),
        max_size=60,
    )
)
def test_the_bounds_hold_whatever_is_seen(script: list[Seen]) -> None:
    scale = Scale(
        ScaleSettings(min_workers=2, max_workers=5, cooldown=timedelta(seconds=1), down_after=timedelta(seconds=1))
    )
    for tick, one in enumerate(script):
        advice = scale.see(one, tick * 0.5)
        assert 2 <= advice.wanted <= 5
        assert advice.reason in {STEADY, WAITING, SLO, IDLE, COOLING, UNEVEN}
