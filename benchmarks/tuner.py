"""The tuner against the best parameters that stay as they are, and against the default, on a load that changes.

In the simulator of `routing_sim`: two slow and four fast workers, one router, a load that goes between half and nine tenths of
what the fleet can do, every two minutes. The tuner sees windows of 10 s, as in the Router (`router.tuner`). The best static
parameters are found afterwards, on the same requests, from a grid: no tuner has that knowledge. Given is the 99th percentile of
the time to first token over the second half of the run, when the tuner has had time to learn, as medians (least–greatest).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from benchmarks.report import Report, Spread, Table, percentile
from benchmarks.routing_sim.scenario import FLEET, Scenario, Work
from benchmarks.routing_sim.simulation import Simulation
from ladr.config import RouterSettings
from ladr.routing.policy import Policy
from services.router.tuning.tuner import Tuner
from services.router.tuning.tuning import Outcomes

WINDOW_S = 10.0
SWING_S = 120.0
LOADS = (0.5, 0.9)
SLO_S = 2.0
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "ladr-weighted": {"ratio": (0.25, 1.0, 4.0, 16.0), "sharpness": (1.0, 2.0, 4.0, 8.0)},
    "ladr": {"growth": (0.5, 1.0, 2.0), "hold": (0.0, 1.0, 4.0)},
}


@dataclass(frozen=True)
class ChangingLoad(Scenario):
    """The load is `LOADS` in turn."""

    def works(self, seed: int) -> list[Work]:
        """As many requests as at the greatest load, thinned out while it is less."""
        rng = Random(f"thin {seed}")
        kept = []
        for work in super().works(seed):
            load = LOADS[int(work.arrived_s / SWING_S) % len(LOADS)]
            if rng.random() < load / self.load:
                kept.append(work)
        return kept


class Tuned(Simulation):
    """A run with a tuner beside its router."""

    def __init__(self, scenario: Scenario, settings: RouterSettings, seed: int) -> None:
        super().__init__(scenario, settings, seed)
        self.policy: Policy = self.routers[0].policy
        self._tuner = Tuner(self.policy.knobs, self.policy.parameters(), Random(seed), applies=True)
        self._outcomes = Outcomes(SLO_S)
        self._seen = 0
        self.changes = 0
        self._clock.schedule(WINDOW_S, self._window, None)

    def _window(self, _: None) -> None:
        now_s = self._clock.now_s
        for job in self.jobs[self._seen :]:
            if job.work.arrived_s > now_s - SLO_S:
                break
            self._seen += 1
            self._outcomes.add(min(job.ttft_s, 10 * SLO_S))
        value = self._outcomes.take("ttft_p99")
        if value is not None:
            load = sum(worker.running for worker in self.workers) / sum(worker.machine.slots for worker in self.workers)
            decision = self._tuner.window(load, value)
            self.changes += decision.kind == "changed"
            self.policy.tune(decision.parameters)
        self._clock.schedule(now_s + WINDOW_S, self._window, None)


def run(quick: bool) -> Report:
    """Quick: a short run of one seed."""
    seeds, duration_s = ((1,), 120.0) if quick else ((1, 2, 3), 960.0)
    scenario = ChangingLoad("changing", FLEET, max(LOADS), duration_s=duration_s)
    table = Table(
        "First token, p99 of the second half",
        (
            "policy",
            "default [s]",
            "best static [s]",
            "tuned [s]",
            "tuned ÷ default",
            "tuned ÷ best static",
            "its parameters",
        ),
    )
    for name, grid in GRIDS.items():
        points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        points = points[:2] if quick else points
        default, best, tuned, gains, losses, found = [], [], [], [], [], ""
        for seed in seeds:
            by_default = _static(scenario, name, {}, seed)
            statics = {index: _static(scenario, name, point, seed) for index, point in enumerate(points)}
            index = min(statics, key=statics.__getitem__)
            found = ", ".join(f"{key} {value:g}" for key, value in points[index].items())
            one = Tuned(scenario, RouterSettings(policy=name), seed)  # type: ignore[arg-type]
            by_tuner = _p99(one)
            default.append(by_default)
            best.append(statics[index])
            tuned.append(by_tuner)
            gains.append(by_tuner / by_default)
            losses.append(by_tuner / statics[index])
        table.add(name, *map(Spread.of, (default, best, tuned, gains, losses)), found)
    return Report([table], ["“its parameters” are those of the best static run of the last seed."])


def _static(scenario: Scenario, name: str, parameters: dict[str, float], seed: int) -> float:
    simulation = Simulation(scenario, RouterSettings(policy=name), seed)  # type: ignore[arg-type]
    if parameters:
        simulation.routers[0].policy.tune(parameters)
    return _p99(simulation)


def _p99(simulation: Simulation) -> float:
    jobs = simulation.run()
    return percentile(list(_late_half(job.ttft_s for job in jobs)), 0.99)


def _late_half(times_s: Iterable[float]) -> list[float]:
    ordered = list(times_s)
    return ordered[len(ordered) // 2 :]
