"""`python -m benchmarks.routing_sim`: simulate policies, scenarios and fleets of your choice."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from benchmarks.report import Table
from benchmarks.routing_sim import SEEDS
from benchmarks.routing_sim.measure import Figures, geomean, run_all
from benchmarks.routing_sim.scenario import EXTRA, SCENARIOS, Scenario, random_fleets
from ladr.config import RouterSettings
from ladr.routing.orders import ORDERS
from ladr.routing.policies import POLICIES


def main() -> None:
    args = _arguments()
    names = list(POLICIES) if args.policy == "all" else [args.policy]
    scenarios = _scenarios(args)
    began_s = time.monotonic()
    policies = [RouterSettings.model_validate({**dict(args.set), "policy": name}) for name in names]
    seeds = range(args.seed, args.seed + (1 if args.quick else args.seeds))
    found = run_all(scenarios, [None, *policies], seeds, args.jobs)
    told: dict[str, Any] = {"seeds": len(seeds), "report_ms": args.report_ms}
    policies_told = {name: _summary(scenarios, found, at) for at, name in enumerate(names, 1)}
    if len(names) == 1:
        told |= {"policy": names[0], **policies_told[names[0]]}
    else:
        told["policies"] = policies_told
    told["seconds"] = round(time.monotonic() - began_s, 1)
    if args.output == "json":
        if args.summary:
            _drop_scenarios(told)
        json.dump(told, sys.stdout, indent=2)
        print()
    else:
        _print(names, scenarios, found, args.summary)
        print(f"{len(seeds)} seeds, reports each {args.report_ms:g} ms, {told['seconds']} s")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing_sim", description=__doc__)
    parser.add_argument("--policy", choices=("all", *POLICIES), default="all")
    parser.add_argument("--scenario", action="append", metavar="NAME", help="these alone; also extra ones")
    parser.add_argument("--extra", action="store_true", help="the scenarios with caches, failures, distances and so on")
    parser.add_argument("--fleets", type=int, default=0, metavar="N", help="so many random fleets instead")
    parser.add_argument("--seed", type=int, default=0, help="of the fleets, and the first of the runs")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="runs of each scenario, whose requests are put together"
    )
    parser.add_argument("--report-ms", type=float, default=200.0, help="time between two reports of a worker")
    parser.add_argument(
        "--order", choices=tuple(ORDERS), help="of the routers' queues; first come, first served if not given"
    )
    parser.add_argument(
        "--set", action="append", type=_setting, default=[], metavar="KEY=VALUE", help="a setting of the router"
    )
    parser.add_argument("--summary", action="store_true", help="geometric mean and worst alone")
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at once")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    args = parser.parse_args()
    known = {scenario.name for scenario in (*SCENARIOS, *EXTRA)}
    if unknown := set(args.scenario or ()) - known:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there is {', '.join(sorted(known))}")
    return args


def _setting(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    return key, value


def _scenarios(args: argparse.Namespace) -> list[Scenario]:
    chosen: list[Scenario] = list(EXTRA if args.extra else SCENARIOS)
    if args.scenario:
        chosen = [scenario for scenario in (*SCENARIOS, *EXTRA) if scenario.name in args.scenario]
    if args.fleets:
        chosen = list(random_fleets(args.fleets, args.seed))
    order = {"order": args.order} if args.order else {}
    return [replace(scenario, report_s=args.report_ms / 1000, **order) for scenario in chosen]


def _summary(scenarios: list[Scenario], found: list[list[Figures]], at: int) -> dict[str, Any]:
    ratios = [row[at].p99_s / row[0].p99_s for row in found]
    return {
        "p99_vs_central_geomean": geomean(ratios),
        "p99_vs_central_worst": max(ratios),
        "scenarios": [
            {"name": scenario.name, "p99_vs_central": ratio, "central": asdict(row[0]), "policy": asdict(row[at])}
            for scenario, ratio, row in zip(scenarios, ratios, found, strict=True)
        ],
    }


def _drop_scenarios(told: dict[str, Any]) -> None:
    for part in (told, *told.get("policies", {}).values()):
        part.pop("scenarios", None)


def _print(names: list[str], scenarios: list[Scenario], found: list[list[Figures]], summary: bool) -> None:
    ratios = Table("p99 of the time to first token ÷ the limit's", ("scenario", "limit [s]", *names))
    goodput = Table("Share of first tokens within 2 s", ("scenario", "limit", *names))
    for scenario, row in zip(scenarios, found, strict=True):
        ratios.add(scenario.name, row[0].p99_s, *(figures.p99_s / row[0].p99_s for figures in row[1:]))
        goodput.add(scenario.name, *(figures.goodput for figures in row))
    if not summary:
        print(ratios, "\n")
        print(goodput, "\n")
    short = Table("p99 ÷ the limit's", ("policy", "geometric mean", "worst"))
    for at, name in enumerate(names, 1):
        told = _summary(scenarios, found, at)
        short.add(name, told["p99_vs_central_geomean"], told["p99_vs_central_worst"])
    print(short)


if __name__ == "__main__":
    main()
