"""The whole of a benchmark: rounds in which every policy has its turn under the same arrivals, so that noise hits all alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ladr import config
from ladr.bench.fleet import Mesh, mesh_of, with_mesh
from ladr.bench.load_watch import policy_of
from ladr.bench.run import Load, Progress, Tally, Turn, take_turn, take_turn_in_mesh
from ladr.bench.scenarios import Scenario, up_fleet

T = TypeVar("T")


async def in_meshes(
    loads: Sequence[tuple[Scenario, Load]],
    policies: Sequence[str],
    rounds: int,
    config_file: Path | None,
    progress: Progress | None,
) -> list[Tally]:
    """A fresh mesh for each load and policy in each round. Raises: as `with_mesh`, and ConfigError."""
    settings = config.load(config_file)
    fleets = {load.scenario: up_fleet(scenario.fleet, load.longest_tokens) for scenario, load in loads}
    tallies = [Tally(load, policy) for _, load in loads for policy in policies]
    for number in range(rounds):
        for tally in order(tallies, number):
            load = replace(tally.load, seed=tally.load.seed + number)
            label = f"{load.scenario}, {tally.policy}, round {number + 1} of {rounds}"
            if progress:
                progress(f"{label}: starting a mesh")

            async def turn(mesh: Mesh, load: Load = load, label: str = label) -> Turn:
                return await take_turn_in_mesh(mesh, load, label, progress)

            children = mesh_of(settings, fleets[load.scenario], tally.policy)
            tally.turns.append(await with_mesh(children, config_file, turn))
    return tallies


async def at_address(address: str, load: Load, rounds: int, progress: Progress | None) -> list[Tally]:
    """A running router, once in each round. Raises: LadrError: it does not answer."""
    tally = Tally(load, await policy_of(address))
    for number in range(rounds):
        label = f"{address}, round {number + 1} of {rounds}"
        tally.turns.append(await take_turn(address, replace(load, seed=load.seed + number), label, progress))
    return [tally]


def order(turns: Sequence[T], number: int) -> Sequence[T]:
    """The turns of round `number` (from 0): each round begins one further on, so that none is always first."""
    start = number % len(turns)
    return [*turns[start:], *turns[:start]]
