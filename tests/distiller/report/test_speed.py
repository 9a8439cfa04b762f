"""Speeds by a clock that is turned by the models themselves."""

from __future__ import annotations

import pytest

from services.distiller.report.speed import DECODED, PROMPT, ROUNDS, race, ratio
from tests.distiller import tiny


def test_models_take_turns_and_a_machine_that_slows_down_does_not_change_their_ratio() -> None:
    models = {"teacher": tiny.teacher(layers=2).eval(), "student": tiny.teacher(layers=1).eval()}
    costs_s = {"teacher": 2.0, "student": 0.5}
    now_s, slowness, turns = 0.0, 1.0, []

    for name, model in models.items():

        def turn(*_: object, name: str = name) -> None:
            nonlocal now_s
            now_s += costs_s[name] * slowness
            turns.append(name)

        model.register_forward_hook(turn)

    def slower() -> None:
        nonlocal slowness
        slowness *= 3

    speeds = race(models, 200, slower, lambda: now_s)
    order = turns[:: 1 + DECODED]  # a round of a model is one pass to read and DECODED to write
    assert order == [*["student", "teacher"], *["teacher", "student"]] * ((1 + ROUNDS) // 2)
    median = 3 ** (1 + ROUNDS // 2)  # of the rounds that count; the first does not
    assert speeds["teacher"].decode == pytest.approx(1 / (2.0 * median))
    assert speeds["student"].decode == pytest.approx(1 / (0.5 * median))
    found = ratio(speeds["student"].rounds, speeds["teacher"].rounds)
    assert (found.median, found.low, found.high) == pytest.approx(
        (4, 4, 4)
    )  # also where the rounds are 81 times slower
    assert speeds["teacher"].prefill == pytest.approx(PROMPT / (2.0 * median))
    assert speeds["student"].weight_bytes == 4 * sum(one.numel() for one in models["student"].parameters())
    assert speeds["student"].peak_bytes == 0


def test_the_ratio_of_two_models_is_that_of_the_rounds_and_not_that_of_their_medians() -> None:
    found = ratio([10.0, 20.0, 60.0], [10.0, 5.0, 40.0])
    assert (found.median, found.low, found.high) == (1.5, 1.0, 4.0)
