"""Routing policies against the best that a fleet can do, in simulated time.

Continuous batching, routers that know of workers only what messages tell them, reports each 200 ms; the policies, rows, leases
and orders are those that the Router drives. The limit is one queue for all, first come, first served, that sees everything at
once. Given is the 99th percentile of the time to first token as a multiple of the limit's, in 16 scenarios: loads from 0.5 to
0.95, a pulse of 800 requests, a worker that becomes 5 times slower, small and large slot counts, one to four routers.
"""

from __future__ import annotations

from benchmarks.report import Report, Table
from benchmarks.routing_sim.measure import geomean, run_all
from benchmarks.routing_sim.scenario import SCENARIOS
from ladr.config import RouterSettings
from ladr.routing.policies import POLICIES

SEEDS = 4


def run(quick: bool) -> Report:
    """All policies. Quick: three scenarios, three policies, one seed."""
    names = ("ladr", "least-request", "ladr-weighted") if quick else tuple(POLICIES)
    scenarios = [s for s in SCENARIOS if not quick or s.name in ("load-50", "pulse", "routers-4")]
    found = run_all(scenarios, [None, *(RouterSettings(policy=name) for name in names)], range(1 if quick else SEEDS))
    tails = Table("p99 of the time to first token ÷ the limit's", ("scenario", "limit [s]", *names))
    ratios = [[figures.p99_s / limit.p99_s for figures in others] for limit, *others in found]
    for scenario, (limit, *_), row in zip(scenarios, found, ratios, strict=True):
        tails.add(scenario.name, limit.p99_s, *row)
    columns = list(zip(*ratios, strict=True))
    tails.add("geometric mean", geomean([limit.p99_s for limit, *_ in found]), *map(geomean, columns))
    return Report([tails], ["Under 1: requests overtook others, which the limit never lets them."])
