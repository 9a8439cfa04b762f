"""The tuner on made-up objectives, and its runtime over real files."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from ladr.config import TunerSettings
from ladr.routing.policies.ladr_weighted import LadrWeighted
from ladr.routing.policy import Knob
from services.router.tuning.tuner import LEAST, STEP, WINDOW, Decision, Tuner
from services.router.tuning.tuning import LEAST_REQUESTS, Outcomes, Tuning

KNOBS = (Knob("ratio", 1 / 32, 32.0, log=True), Knob("hold", 0.0, 8.0))
START = {"ratio": 1.0, "hold": 6.0}


def bowl(best_share: float, best_hold: float) -> Callable[[dict[str, float], float], float]:
    """An objective with its least at a place, three times as much at the far ends."""

    def value(parameters: dict[str, float], load: float) -> float:
        far = (KNOBS[0].share(parameters["ratio"]) - best_share) ** 2 + ((parameters["hold"] - best_hold) / 8) ** 2
        return (0.5 + load) * math.exp(1.5 * far)

    return value


def drive(
    tuner: Tuner,
    objective: Callable[[dict[str, float], float], float],
    windows: int,
    rng: Random,
    load: Callable[[int], float] = lambda n: 0.5,
    noise: float = 0.05,
) -> list[Decision]:
    return [
        tuner.window(load(n), objective(tuner.parameters, load(n)) * math.exp(rng.gauss(0, noise)))
        for n in range(windows)
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_finds_a_better_place_in_spite_of_noise(seed: int) -> None:
    rng = Random(seed)
    objective = bowl(0.9, 1.0)
    tuner = Tuner(KNOBS, START, rng, applies=True)
    drive(tuner, objective, 80, rng)
    late = [objective(d.parameters, 0.5) for d in drive(tuner, objective, 20, rng)]
    assert sum(late) / len(late) < 0.8 * objective(START, 0.5)


def test_the_best_place_may_depend_on_the_load() -> None:
    rng = Random(4)
    calm, busy = bowl(0.2, 2.0), bowl(0.8, 2.0)
    tuner = Tuner(KNOBS, START, rng, applies=True)
    drive(
        tuner,
        lambda p, load: (calm if load < 0.5 else busy)(p, load),
        150,
        rng,
        load=lambda n: 0.2 + 0.7 * (n // 15 % 2),
    )
    calm_at = [d.parameters for d in drive(tuner, calm, 12, rng, load=lambda n: 0.2)][-6:]
    busy_at = [d.parameters for d in drive(tuner, busy, 12, rng, load=lambda n: 0.9)][-6:]
    assert sum(KNOBS[0].share(p["ratio"]) for p in calm_at) < sum(KNOBS[0].share(p["ratio"]) for p in busy_at)


@pytest.mark.parametrize("seed", range(5))
def test_bounds_and_step_hold_whatever_is_measured(seed: int) -> None:
    rng = Random(seed)
    tuner = Tuner(KNOBS, START, rng, applies=True)
    for _ in range(30):
        decision = tuner.window(rng.uniform(0, 3), math.exp(rng.uniform(-9, 7)))
        for knob in KNOBS:
            assert knob.low * 0.999 <= decision.parameters[knob.name] <= knob.high * 1.001
            step = knob.share(decision.parameters[knob.name]) - knob.share(tuner._trusted[knob.name])
            assert abs(step) <= STEP + 1e-9


def test_a_change_that_makes_things_worse_is_undone() -> None:
    rng = Random(6)
    tuner = Tuner(KNOBS, START, rng, applies=True)
    decision = None
    for _ in range(60):
        decision = tuner.window(0.5, bowl(0.9, 1.0)(tuner.parameters, 0.5))
        if decision.kind == "changed":
            break
    assert decision is not None
    assert decision.kind == "changed"
    before = dict(tuner._trusted)
    undone = tuner.window(0.5, 100.0)
    assert undone.kind == "rolled back"
    assert tuner.parameters == before


def test_on_level_ground_it_stays_where_it_is() -> None:
    rng = Random(7)
    tuner = Tuner(KNOBS, START, rng, applies=True)
    decisions = drive(tuner, lambda p, load: 1.0, 60, rng, noise=0.02)
    assert sum(d.kind == "changed" for d in decisions) < 20


def test_in_shadow_it_decides_and_changes_nothing() -> None:
    rng = Random(8)
    tuner = Tuner(KNOBS, START, rng, applies=False)
    drive(tuner, bowl(0.9, 1.0), 30, rng)
    assert tuner.parameters == START


def test_a_later_life_goes_on_where_the_first_stopped() -> None:
    rng = Random(9)
    first = Tuner(KNOBS, START, rng, applies=True)
    drive(first, bowl(0.9, 1.0), 40, rng)
    second = Tuner(KNOBS, START, Random(1), applies=True)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    assert second.window(0.5, 1.0).kind != "learning"


@pytest.mark.parametrize(
    "broken", [{}, {"parameters": {"other": 1.0}, "trusted": {}, "trial": False, "total": 0, "samples": []}]
)
def test_a_state_of_something_else_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Tuner(KNOBS, START, Random(1), applies=True).restore(broken)


def test_what_is_kept_is_bounded() -> None:
    tuner = Tuner(KNOBS, START, Random(1), applies=False)
    for _ in range(LEAST - 1):
        tuner.window(0.1, 1.0)
    tuner._samples.extend([tuner._samples[0]] * 3 * WINDOW)
    assert len(tuner.state()["samples"]) == WINDOW


@given(st.floats(0, 1))
def test_a_knobs_share_and_value_are_inverse(share: float) -> None:
    for knob in KNOBS:
        assert abs(knob.share(knob.value(share)) - share) < 1e-9


def test_outcomes_count_what_never_came_as_the_worst() -> None:
    outcomes = Outcomes(2.0)
    assert outcomes.take("ttft_p99") is None
    for _ in range(LEAST_REQUESTS * 10):
        outcomes.add(0.1)
    assert outcomes.take("ttft_p99") == 0.1
    for _ in range(LEAST_REQUESTS):
        outcomes.add(0.1)
    outcomes.add(None)
    assert outcomes.take("ttft_p99") == 20.0
    for late in (0.1, 3.0) * LEAST_REQUESTS:
        outcomes.add(late)
    assert outcomes.take("slo_misses") == pytest.approx(0.5, abs=0.03)


def tuning(tmp_path: Path, mode: str, policy: LadrWeighted) -> Tuning:
    made = TunerSettings(mode=mode, window=timedelta(milliseconds=20), state=tmp_path / "t.json")  # type: ignore[arg-type]
    return Tuning(made, "ladr-weighted", policy, Outcomes(2.0), lambda: 0.5, Random(1), CollectorRegistry())


async def turn(one: Tuning, until: Callable[[], bool]) -> None:
    """Let it run over requests that are served the sooner the more α counts."""
    running = asyncio.create_task(one.run())
    try:
        async with asyncio.timeout(60):
            while not until():
                share = LadrWeighted.knobs[0].share(one.policy.parameters()["ratio"])
                for _ in range(LEAST_REQUESTS):
                    one.outcomes.add(0.2 + (1 - share))
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_it_turns_the_policy_writes_each_change_down_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    policy = LadrWeighted(0.5, 0.5)
    first = tuning(tmp_path, "on", policy)
    audit = tmp_path / "t.audit.jsonl"
    await turn(first, lambda: audit.exists() and '"changed"' in audit.read_text() and policy.parameters()["ratio"] > 4)
    events = [json.loads(line) for line in audit.read_text().splitlines()]
    assert all(event["before"] != event["after"] and event["policy"] == "ladr-weighted" for event in events)
    fresh = LadrWeighted(0.5, 0.5)
    second = tuning(tmp_path, "on", fresh)
    await turn(second, lambda: fresh.parameters()["ratio"] != 1.0)


async def test_shadow_mode_leaves_the_policy_alone(tmp_path: Path) -> None:
    policy = LadrWeighted(0.5, 0.5)
    one = tuning(tmp_path, "shadow", policy)
    path = tmp_path / "t.json"
    await turn(one, lambda: path.exists() and len(json.loads(path.read_text())["samples"]) > LEAST + 2)
    assert policy.parameters() == {"ratio": 1.0, "sharpness": 1.0}


async def test_a_state_that_is_broken_is_said_and_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{")
    policy = LadrWeighted(0.5, 0.5)
    await turn(tuning(tmp_path, "on", policy), lambda: policy.parameters()["ratio"] != 1.0)
