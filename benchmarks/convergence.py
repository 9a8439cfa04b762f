"""How soon a router turns away from a worker that became slow, and how seldom it turns for nothing.

Slow: four simulated workers, alike, as processes, under a steady 100 requests a second. One of them takes five times as long
for each step from some moment on (seen by a stream straight to it). Followed is its weight in the router's RouteTable, until
three seconds hold its final value: their median. It has converged when it has gone 90 % of the way from its value before and
stays so (the settling time of a step response); where it strays further in those last seconds too, as weights that follow a
queue do, within what 95 % of those keep. The mean of all rounds, moment by moment, strays less. The share of the requests is of
those that clients sent in a time after the slowdown.

For nothing: six workers whose latencies vary from report to report (log-normal, σ 0.2, seeded), in one process. Counted is how
often the worker with the best score changes in 1,000 reports, with the usual smoothing (θ = 0.7) and without any (θ = 0).
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from random import Random

import grpc

from benchmarks.fleet import MODEL, fleet
from benchmarks.report import Report, Spread, Table, percentile
from ladr.config import RouterSettings
from ladr.routing.board import Scoreboard
from ladr.routing.policies.ladr_weighted import LadrWeighted
from ladr.v1 import fleet_pb2, generation_pb2, metrics_pb2, router_pb2, router_pb2_grpc, worker_pb2_grpc
from tests.load import Load, Outcome, channel_to

SLOW = "worker-1"
STEP_MS = 10
FACTOR = 5
RATE_PER_S = 100
TOKENS = 8
SLOW_AFTER_S = (8.0, 16.0, 32.0)  # of the worker's life, as a machine needs to start the rest
CALM_S = 1.0  # at least, seen before that
ENDLESS = 1_000_000
TAIL_S = 3.0
WITHIN = 0.1
PERIODS_S = ((-2.0, 0.0), (0.0, 0.8), (0.8, 1.6), (1.6, math.inf))  # after the slowdown
JITTER = 0.2
FLEETS_MS = {
    "alike": (100.0,) * 6,
    "10 % apart": (100.0, 110.0, 121.0, 133.0, 146.0, 161.0),
    "two slow, four fast": (250.0, 250.0, 100.0, 100.0, 100.0, 100.0),
}


def run(quick: bool) -> Report:
    """Measure, in about three minutes. Quick: one policy, one round."""
    settings = RouterSettings()
    policies = [settings.policy] if quick else list(dict.fromkeys((settings.policy, "ladr-weighted")))
    rounds, after_s = (1, 4.0) if quick else (5, 7.0)
    found: dict[str, list[Slowdown]] = {policy: [] for policy in policies}
    for number in range(rounds):
        for policy in policies if number % 2 else policies[::-1]:
            found[policy].append(_round(policy, after_s))
    return Report(
        [_times(found), _shares(found), _switches(seeds=1 if quick else 5)],
        [f"{rounds} rounds (least–greatest), each with processes of its own; switches over the seeds."],
    )


@dataclass
class Slowdown:
    """What one round saw. Times are monotonic seconds."""

    at_s: float = 0.0
    weights: list[tuple[float, float]] = field(default_factory=list)
    outcomes: Sequence[Outcome] = ()

    @property
    def tail(self) -> list[float]:
        return [weight for at_s, weight in self.weights if at_s > self.weights[-1][0] - TAIL_S]

    @property
    def before(self) -> float:
        return statistics.median(weight for at_s, weight in self.weights if self.at_s - 2 < at_s < self.at_s)

    @property
    def final(self) -> float:
        return statistics.median(self.tail)

    @property
    def step(self) -> float:
        """The way that the weight has to go."""
        return abs(self.before - self.final)

    @property
    def band(self) -> float:
        """How far from its final value the weight may be."""
        return max(self.step * WITHIN, percentile([abs(weight - self.final) for weight in self.tail], 0.95))

    @property
    def took_s(self) -> float:
        """From the slowdown to the table from which on all are within the band, the last seconds apart."""
        until_s = self.weights[-1][0] - TAIL_S
        after = [(at_s - self.at_s, weight) for at_s, weight in self.weights if self.at_s <= at_s <= until_s]
        astray = [n for n, (_, weight) in enumerate(after) if abs(weight - self.final) > self.band]
        if not astray:
            return 0.0
        return after[astray[-1] + 1][0] if astray[-1] + 1 < len(after) else after[-1][0]

    def weight(self, after_s: float) -> float:
        """In the newest table so long after the slowdown."""
        return [weight for at_s, weight in self.weights if at_s <= self.at_s + after_s][-1]

    def share(self, begin_s: float, end_s: float) -> float:
        """Percent of the requests of a period that the slow worker got."""
        asked = [o for o in self.outcomes if begin_s <= o.began_s - self.at_s < end_s and o.workers]
        return 100 * sum(o.workers[0] == SLOW for o in asked) / len(asked) if asked else 0.0


class TooBusy(RuntimeError):
    """The machine did not get everything started before the slowdown."""


def _round(policy: str, after_s: float) -> Slowdown:
    """One round, with more time to start where the machine needs it. Raises: TooBusy."""
    for slow_after_s in SLOW_AFTER_S[:-1]:
        with suppress(TooBusy):
            return asyncio.run(_slowdown(policy, slow_after_s, after_s))
    return asyncio.run(_slowdown(policy, SLOW_AFTER_S[-1], after_s))


async def _slowdown(policy: str, slow_after_s: float, after_s: float) -> Slowdown:
    """`after_s` seconds from the slowdown on. Raises: TooBusy."""
    pace = {"step": f"{STEP_MS}ms", "answer_tokens": ENDLESS}
    slow = {**pace, "slow_after": f"{slow_after_s}s", "slow_factor": FACTOR}
    paces = {SLOW: slow, "worker-2": pace, "worker-3": pace, "worker-4": pace}
    workers = [{"id": name, "slots": 32, "context_tokens": ENDLESS, "simulated": one} for name, one in paces.items()]
    found = Slowdown()
    async with (
        fleet(workers) as there,
        there.router(policy=policy) as router,
        channel_to(router.address) as channel,
        channel_to(there.workers[SLOW].address) as straight,
    ):
        watching = asyncio.create_task(_watch(channel, found.weights))
        sampling = generation_pb2.Sampling(max_tokens=TOKENS)
        try:
            async with Load(channel, RATE_PER_S, sampling=sampling) as load, asyncio.timeout(60):
                found.at_s = await _slowed(straight)
                await asyncio.sleep(found.at_s + after_s - time.monotonic())
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    found.outcomes = load.outcomes
    return found


async def _watch(channel: grpc.aio.Channel, weights: list[tuple[float, float]]) -> None:
    call = router_pb2_grpc.RouterStub(channel).WatchRoutes(router_pb2.WatchRoutesRequest())
    try:
        async for table in call:
            weights += [(time.monotonic(), route.weight) for route in table.routes if route.worker_id == SLOW]
    finally:
        call.cancel()


async def _slowed(channel: grpc.aio.Channel) -> float:
    """When the worker became slow: ten steps took more than half of what slow ones take; the first long one of them began.

    Steps that a busy machine slept over are made up for, so that ten of them together are true.
    Raises: TooBusy: it was slow before much was seen of it.
    """
    request = generation_pb2.GenerateRequest(prompt="probe", model=MODEL)
    request.sampling.max_tokens = ENDLESS // 2
    call = worker_pb2_grpc.WorkerStub(channel).Generate(request)
    first_s = time.monotonic()
    came_s = deque([first_s], maxlen=11)
    long_s = STEP_MS / 1e3 * FACTOR / 2
    try:
        async for _ in call:
            came_s.append(time.monotonic())
            if len(came_s) == came_s.maxlen and came_s[-1] - came_s[0] > 10 * long_s:
                break
    finally:
        call.cancel()
    began_s = next((began_s for began_s, end_s in pairwise(came_s) if end_s - began_s > long_s), first_s)
    if began_s - first_s < CALM_S:
        raise TooBusy("the slowdown was not seen: the machine is too busy")
    return began_s


def _times(found: dict[str, list[Slowdown]]) -> Table:
    table = Table(
        f"Weight of a worker that became {FACTOR} times as slow",
        ("policy", "before", "final", "converged after [s]", "within [% of the way]", "mean of rounds [s]"),
    )
    for policy, rounds in found.items():
        table.add(
            policy,
            Spread.of([one.before for one in rounds]),
            Spread.of([one.final for one in rounds]),
            Spread.of([one.took_s for one in rounds]),
            Spread.of([100 * one.band / one.step if one.step else 0.0 for one in rounds]),
            mean_took_s(rounds),
        )
    return table


def mean_took_s(rounds: Sequence[Slowdown], after_s: float = TAIL_S, step_s: float = 0.05) -> float:
    """When the mean of the rounds' weights has gone 90 % of the mean way, and stays so for `after_s`."""
    final = statistics.mean(one.final for one in rounds)
    way = abs(final - statistics.mean(one.before for one in rounds))
    took_s = 0.0
    for step in range(round(after_s / step_s)):
        mean = statistics.mean(one.weight(step * step_s) for one in rounds)
        if abs(mean - final) > WITHIN * way:
            took_s = (step + 1) * step_s
    return took_s


def _shares(found: dict[str, list[Slowdown]]) -> Table:
    names = ["before [%]", *(f"{begin_s}–{end_s} s [%]" for begin_s, end_s in PERIODS_S[1:-1])]
    table = Table("Share of the requests that it got", ("policy", *names, "later [%]"))
    for policy, rounds in found.items():
        table.add(policy, *(Spread.of([one.share(*period) for one in rounds]) for period in PERIODS_S))
    return table


def _switches(seeds: int) -> Table:
    theta = RouterSettings().theta
    table = Table(
        f"Changes of the best worker in 1,000 reports, latencies with σ = {JITTER}",
        ("workers", "θ = 0", f"θ = {theta}", "fewer [%]"),
    )
    for name, latencies_ms in FLEETS_MS.items():
        raw, smooth = ([switches(latencies_ms, each, seed) for seed in range(seeds)] for each in (0.0, theta))
        fewer = [100 * (1 - b / a) if a else 0.0 for a, b in zip(raw, smooth, strict=True)]
        table.add(name, Spread.of(raw), Spread.of(smooth), Spread.of(fewer))
    return table


def switches(latencies_ms: Sequence[float], theta: float, seed: int, reports: int = 1_000) -> int:
    """How often the best worker is another than one report before."""
    settings = RouterSettings()
    board = Scoreboard(theta, ttl_s=1.0)
    policy = LadrWeighted(settings.alpha, settings.beta)
    rng = Random(seed)
    totals_s = [0.0] * len(latencies_ms)
    best, changes = "", 0
    for sequence in range(1, reports + 1):
        now_s = 0.2 * sequence
        update = metrics_pb2.FleetUpdate()
        for number, latency_ms in enumerate(latencies_ms):
            totals_s[number] += latency_ms / 1e3 * math.exp(rng.gauss(0, JITTER))
            update.workers.add(report=_report(number, sequence, totals_s[number]))
        board.hear(update, now_s)
        rows = board.eligible(MODEL, now_s)
        weights = policy.weights(rows)
        winner = rows[weights.index(max(weights))].worker_id
        changes += bool(best) and winner != best
        best = winner
    return changes


def _report(number: int, sequence: int, total_s: float) -> fleet_pb2.WorkerReport:
    report = fleet_pb2.WorkerReport(
        worker_id=f"worker-{number}",
        incarnation="life",
        sequence=sequence,
        address="127.0.0.1:1",
        state=fleet_pb2.WORKER_STATE_READY,
        models=[fleet_pb2.ModelStatus(name=MODEL, state=fleet_pb2.MODEL_STATE_READY)],
        slots=32,
    )
    report.time_to_first_token.count = sequence
    report.time_to_first_token.sum.FromTimedelta(timedelta(seconds=total_s))
    return report
