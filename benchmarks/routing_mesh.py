"""The policies against each other and against Envoy, under the four loads of `ladr bench`, in a real mesh.

Each scenario has its bus and its six simulated workers, as processes. One after the other, in an order that changes from round
to round, a router with each policy and Envoy with two of its own stand before those same workers and get the same arrivals.
Prompts and answers have a quarter of the scenario's tokens and the SLO is a quarter of `ladr bench`'s (first token within
0.5 s), so that a few seconds hold some hundreds of requests; the paces of the workers are as they are there.

Latencies count from the intended time of a request. Of all rounds together: time to first token and to the end, goodput (answered
whole, first token within the SLO), failed requests, tokens lost and repeated. Sustained is the highest rate at which 99 % of
the requests have their first token within the SLO, by bisection, in turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import get_args

import uvloop

from benchmarks import envoy
from benchmarks.fleet import MODEL, Fleet, fleet
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


FULL = Size(tuple(SCENARIOS), POLICIES, rounds=2, turn_s=3.0, searches=5, search_s=3.5)
QUICK = Size(("chat",), tuple(dict.fromkeys((OURS, RIVAL))), rounds=1, turn_s=1.5, searches=1, search_s=1.5)


def run(quick: bool) -> Report:
    """Measure, in about twelve minutes. Quick: one scenario, two policies and Envoy, a second and a half each."""
    return uvloop.run(_run(QUICK if quick else FULL))


async def _run(size: Size) -> Report:
    tables: list[Table] = []
    sustained = Table(
        f"Sustained rate, first token of 99 % within {SLO.ttft_s} s",
        ("scenario", f"{OURS} [1/s]", f"{RIVAL} [1/s]", f"{OURS} ÷ {RIVAL}"),
    )
    for name in size.scenarios:
        scenario = quarter(SCENARIOS[name].scaled(DEFAULT_SCALE))
        longest = scenario.shape.prompt.longest + scenario.shape.answer.longest
        async with fleet(up_fleet(scenario.fleet, longest)) as there:
            tables.append(_table(scenario, await _turns(there, scenario, size), size))
            if scenario.shape.kind != "pulse":  # whose p99 is that of the pulse, whatever the rate beside it
                ours, rival = await _search(there, scenario, size)
                sustained.add(name, ours, rival, ours / rival)
    notes = [f"Slots are {DEFAULT_SCALE} of the scenarios'. Figures are of {size.rounds} rounds of {size.turn_s} s together."]
    if envoy.binary() is None:
        notes.append(envoy.MISSING)
    return Report([*tables, sustained], notes)


def quarter(scenario: Scenario) -> Scenario:
    """With shorter prompts and answers, and so with more of them."""
    shape = scenario.shape
    prompt, answer = (
        Length(round(length.median * SHARE), length.sigma) for length in (shape.prompt, shape.answer)
    )
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


async def _turns(there: Fleet, scenario: Scenario, size: Size) -> dict[str, Measurement]:
    """All rounds of each contestant, added up."""
    async with envoy.envoy([worker.address for worker in there.workers.values()]) as proxy:
        contestants = [*size.policies, *(proxy.addresses if proxy else ())]
        found: dict[str, Measurement] = {}
        for number in range(size.rounds):
            load = _load(scenario, scenario.load * scenario.capacity_per_s, size.turn_s, seed=number)
            for name in order(contestants, number):
                if proxy and name in proxy.addresses:
                    turn = await take_turn(proxy.addresses[name], replace(load, method=envoy.GENERATE), name, None)
                else:
                    async with there.router(policy=name) as router:
                        turn = await take_turn(router.address, load, name, None)
                if name in found:
                    found[name].add(turn.measurement)
                else:
                    found[name] = turn.measurement
    return {name: found[name] for name in contestants}


@asynccontextmanager
async def _routers(there: Fleet) -> AsyncIterator[tuple[str, str]]:
    async with there.router(policy=OURS) as ours, there.router(policy=RIVAL) as rival:
        yield ours.address, rival.address


async def _search(there: Fleet, scenario: Scenario, size: Size) -> list[float]:
    """Sustained rates of OURS and RIVAL; both bisect at the same time, one run of each after the other."""
    low, high = (share * scenario.capacity_per_s for share in RANGE)
    async with _routers(there) as addresses:
        kept = dict.fromkeys(addresses, low)
        broken = dict.fromkeys(addresses, high)
        for number in range(size.searches):
            for address in order(addresses, number):
                rate_per_s = (kept[address] + broken[address]) / 2
                turn = await take_turn(address, _load(scenario, rate_per_s, size.search_s, seed=100 + number), "", None)
                keeps = turn.measurement.first_in_time_ratio >= 0.99
                (kept if keeps else broken)[address] = rate_per_s
    return [kept[address] for address in addresses]


def _table(scenario: Scenario, found: dict[str, Measurement], size: Size) -> Table:
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
