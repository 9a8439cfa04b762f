"""The policies against each other and against Envoy, under the four loads of `ladr bench`, in a real mesh.

Each scenario has its bus and its six simulated workers, as processes. A router for each policy, and Envoy with two of its own,
stand before those same workers and get the same arrivals one after the other, in an order that changes from round to round.
Prompts and answers have a quarter of the scenario's tokens and the SLO is a quarter of `ladr bench`'s (first token within
0.5 s), so that a few seconds hold some hundreds of requests; the paces of the workers are as they are there.

Latencies count from the intended time of a request. Of all rounds together: time to first token and to the end, goodput
(answered whole, first token within the SLO), failed requests, tokens lost and repeated. Sustained is the highest rate at which
99 % of the requests have their first token within the SLO, by bisection, in turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import get_args

from benchmarks import envoy
from benchmarks.fleet import MODEL, fleet
from benchmarks.report import Cell, Report, Table
from ladr.bench.arrivals import Length
from ladr.bench.generator import GENERATE
from ladr.bench.measure import Latencies, Measurement, Slo
from ladr.bench.rounds import order
from ladr.bench.run import Load, take_turn
from ladr.bench.scenarios import DEFAULT_SCALE, SCENARIOS, Scenario, up_fleet
from ladr.config import RouterSettings

POLICIES: tuple[str, ...] = get_args(RouterSettings.model_fields["policy"].annotation)
OURS = RouterSettings().policy
RIVAL = "round-robin"
SHARE = 0.25  # of the scenario's tokens, and of its SLO
SLO = Slo(ttft_s=2.0 * SHARE)
RANGE = (0.25, 1.125)  # of the fleet's capacity: where the sustained rate is looked for
IN_TIME = 0.99
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    scenarios: Sequence[str]
    policies: Sequence[str]
    rounds: int
    turn_s: float
    searches: int  # runs of one bisection
    search_s: float


@dataclass(frozen=True)
class Contestant:
    """Where requests go, and what is called there."""

    address: str
    method: str = GENERATE

    async def turn(self, load: Load) -> Measurement:
        """One run of a load."""
        return (await take_turn(self.address, replace(load, method=self.method), "", None)).measurement


FULL = Size(tuple(SCENARIOS), POLICIES, rounds=2, turn_s=2.8, searches=5, search_s=4.0)
QUICK = Size(("chat",), tuple(dict.fromkeys((OURS, RIVAL))), rounds=1, turn_s=1.5, searches=1, search_s=1.5)


def run(quick: bool) -> Report:
    """Measure, in about twelve minutes. Quick: one scenario, two policies and Envoy, a second and a half each."""
    return asyncio.run(_run(QUICK if quick else FULL))


async def _run(size: Size) -> Report:
    tables: list[Table] = []
    sustained = Table(
        f"Sustained rate, first token of 99 % within {SLO.ttft_s} s",
        ("scenario", f"{OURS} [1/s]", f"{RIVAL} [1/s]", f"{OURS} ÷ {RIVAL}"),
    )
    failures: list[str] = []
    for name in size.scenarios:
        scenario = quarter(SCENARIOS[name].scaled(DEFAULT_SCALE))
        async with _contestants(scenario, size.policies) as contestants:
            found = await _turns(contestants, scenario, size)
            tables.append(_table(scenario, found))
            failures += _failures(scenario, found)
            if scenario.shape.kind != "pulse":  # whose p99 is that of the pulse, whatever the rate beside it
                ours, rival = await _search(contestants, scenario, size)
                sustained.add(name, ours, rival, ours / rival)
    rounds = f"{size.rounds} rounds of {size.turn_s} s together" if size.rounds > 1 else f"a round of {size.turn_s} s"
    notes = [f"Slots are {DEFAULT_SCALE} of the scenarios'. Figures are of {rounds}."]
    if envoy.binary() is None:
        notes.append(envoy.MISSING)
    return Report([*tables, sustained], [*notes, *failures])


def _failures(scenario: Scenario, found: Mapping[str, Measurement]) -> list[str]:
    """Why requests failed, a line for each whose requests did."""
    return [
        f"{scenario.name}, {name}, failed: {', '.join(f'{count} {why}' for why, count in total.errors.most_common())}"
        for name, total in found.items()
        if total.errors
    ]


@asynccontextmanager
async def _contestants(scenario: Scenario, policies: Sequence[str]) -> AsyncIterator[Mapping[str, Contestant]]:
    """All that stand before the scenario's workers, by name."""
    longest = scenario.shape.prompt.longest + scenario.shape.answer.longest
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(fleet(up_fleet(scenario.fleet, longest)))
        async with asyncio.TaskGroup() as group:
            starts = [group.create_task(stack.enter_async_context(there.router(policy=policy))) for policy in policies]
        found = {name: Contestant(start.result().address) for name, start in zip(policies, starts, strict=True)}
        workers = [worker.address for worker in there.workers.values()]
        if proxy := await stack.enter_async_context(envoy.envoy(workers)):
            found |= {name: Contestant(address, envoy.GENERATE) for name, address in proxy.addresses.items()}
        yield found


def quarter(scenario: Scenario) -> Scenario:
    """With shorter prompts and answers, and so with more of them."""
    shape = scenario.shape
    prompt, answer = (Length(round(length.median * SHARE), length.sigma) for length in (shape.prompt, shape.answer))
    return replace(scenario, shape=replace(shape, prompt=prompt, answer=answer))


def _load(scenario: Scenario, rate_per_s: float, seconds: float, seed: int) -> Load:
    return Load(
        scenario=scenario.name,
        shape=scenario.shape,
        rate_per_s=rate_per_s,
        duration_s=seconds,
        warmup_s=seconds / 4,
        seed=seed,
        slo=SLO,
        timeout_s=TIMEOUT_S,
        max_open=4096,
        connections=4,
        model=MODEL,
    )


async def _turns(contestants: Mapping[str, Contestant], scenario: Scenario, size: Size) -> dict[str, Measurement]:
    """All rounds of each contestant, added up."""
    found: dict[str, list[Measurement]] = {name: [] for name in contestants}
    for number in range(size.rounds):
        load = _load(scenario, scenario.load * scenario.capacity_per_s, size.turn_s, seed=number)
        for name in order(list(contestants), number * len(contestants) // size.rounds):
            found[name].append(await contestants[name].turn(load))
    for first, *others in found.values():
        for other in others:
            first.add(other)
    return {name: rounds[0] for name, rounds in found.items()}


async def _search(contestants: Mapping[str, Contestant], scenario: Scenario, size: Size) -> tuple[float, float]:
    """Sustained rates of OURS and RIVAL; both bisect at the same time, one run of each after the other."""
    low, high = (share * scenario.capacity_per_s for share in RANGE)
    kept, broken = dict.fromkeys((OURS, RIVAL), low), dict.fromkeys((OURS, RIVAL), high)
    for number in range(size.searches):
        for name in order(list(kept), number):
            rate_per_s = (kept[name] + broken[name]) / 2
            found = await contestants[name].turn(_load(scenario, rate_per_s, size.search_s, seed=100 + number))
            (kept if found.first_in_time_ratio >= IN_TIME else broken)[name] = rate_per_s
    return kept[OURS], kept[RIVAL]


def _table(scenario: Scenario, found: dict[str, Measurement]) -> Table:
    rate_per_s = scenario.load * scenario.capacity_per_s
    pulse = f" and {scenario.shape.pulse} at once" if scenario.shape.kind == "pulse" else ""
    table = Table(
        f"{scenario.name}: {rate_per_s:.3g} requests/s{pulse}",
        (
            *("", "TTFT p50 [ms]", "TTFT p99 [ms]", "end p99 [ms]", "goodput [%]"),
            *("requests", "failed", "lost [tokens]", "repeated [tokens]"),
        ),
    )
    for name, total in found.items():
        table.add(
            name,
            *(_ms(total.ttft, 50), _ms(total.ttft, 99), _ms(total.e2e, 99)),
            100 * total.good / total.offered,
            *(total.offered, total.errors.total(), total.lost, total.repeated),
        )
    return table


def _ms(latencies: Latencies, percent: float) -> Cell:
    seconds = latencies.percentile(percent)
    return "–" if seconds is None else seconds * 1e3
