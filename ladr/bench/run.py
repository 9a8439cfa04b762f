"""Runs a load against routers: once for each policy in each round, and adds up what each of them did."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ladr.bench.arrivals import Arrival, Shape
from ladr.bench.fleet import Mesh
from ladr.bench.generator import GENERATE, Generator, connections
from ladr.bench.load_watch import WorkerLoads, watch_loads
from ladr.bench.machine import memory_bytes
from ladr.bench.measure import Measurement, Slo
from ladr.bench.prompts import Prompts

Progress = Callable[[str], None]
SEARCH_RUNS = 6
_IN_TIME = 0.99  # of all requests: the p99 keeps the SLO
_TELL_S = 0.5


@dataclass(frozen=True)
class Load:
    """What is sent in one run, and how it is judged.

    Attributes:
        scenario: its name in reports.
        shape: of the arrivals; `trace` stands in its place where there is one.
        rate_per_s: of the arrivals, a pulse apart; with `search` the highest that is looked at.
        warmup_s: requests before this are sent and do not count.
        timeout_s: for a whole answer.
        search: look for the highest rate that keeps the SLO.
        watch: note each worker's load too.
        method: what is called.
    """

    scenario: str
    shape: Shape
    rate_per_s: float
    duration_s: float
    warmup_s: float
    seed: int
    slo: Slo
    timeout_s: float
    max_open: int
    connections: int
    model: str = ""
    trace: tuple[Arrival, ...] = ()
    search: bool = False
    watch: bool = False
    method: str = GENERATE

    @property
    def end_s(self) -> float:
        """When the last arrival may be."""
        return self.trace[-1].at_s if self.trace else self.duration_s

    @property
    def longest_tokens(self) -> int:
        """No prompt and answer together are longer."""
        traced = [each.prompt_tokens + each.answer_tokens for each in self.trace]
        return max(traced or [self.shape.prompt.longest + self.shape.answer.longest])

    def arrivals(self) -> Iterator[Arrival]:
        """In order of time; the same each time."""
        if not self.trace:
            return self.shape.arrivals(self.rate_per_s, self.duration_s, self.seed, self.model)
        return (each if each.model else replace(each, model=self.model) for each in self.trace)


@dataclass
class Turn:
    """One policy's run in one round, or the best of a search."""

    measurement: Measurement
    loads: WorkerLoads
    sustained_per_s: float | None = None
    memory: tuple[int, int] | None = None  # of the router, in bytes: when it began, and at its peak
    crashes: list[str] = field(default_factory=list)


class Tally:
    """All turns of one (scenario, policy)."""

    def __init__(self, load: Load, policy: str) -> None:
        self.load = load
        self.policy = policy
        self.turns: list[Turn] = []

    @property
    def measurement(self) -> Measurement:
        """All turns in one; only after the first."""
        first = self.turns[0].measurement
        total = Measurement(first.slo, first.begin_s, first.end_s)
        total.window_s = 0.0
        for turn in self.turns:
            total.add(turn.measurement)
        return total

    @property
    def sustained_per_s(self) -> float | None:
        """Median of what the searches found."""
        found = [turn.sustained_per_s for turn in self.turns if turn.sustained_per_s is not None]
        return statistics.median(found) if found else None

    @property
    def memory(self) -> tuple[int, int] | None:
        """The greatest of all turns."""
        known = [turn.memory for turn in self.turns if turn.memory]
        return (max(begin for begin, _ in known), max(peak for _, peak in known)) if known else None


async def take_turn(address: str, load: Load, label: str, progress: Progress | None) -> Turn:
    """Run the load against a router. Raises: Unreachable: nothing answers there."""
    async with connections(address, load.connections) as channels:
        if not load.search:
            return await _run(channels, load, label, progress)
        best: Turn | None = None

        async def keeps_slo(rate_per_s: float) -> bool:
            nonlocal best
            turn = await _run(
                channels, replace(load, rate_per_s=rate_per_s), f"{label} at {rate_per_s:.3g}/s", progress
            )
            kept = turn.measurement.first_in_time_ratio >= _IN_TIME
            if kept or best is None:
                best = turn
            return kept

        sustained_per_s = await highest(keeps_slo, load.rate_per_s, SEARCH_RUNS)
        assert best is not None  # noqa: S101  # there is more than one run
        best.sustained_per_s = sustained_per_s
        return best


async def take_turn_in_mesh(mesh: Mesh, load: Load, label: str, progress: Progress | None) -> Turn:
    """The same with a router of ours: its memory and its mesh's crashes are known."""
    began = memory_bytes(mesh.router_pid)
    turn = await take_turn(mesh.address, load, label, progress)
    ended = memory_bytes(mesh.router_pid)
    turn.memory = (began[0], ended[1]) if began and ended else None
    turn.crashes = list(mesh.crashes)
    return turn


async def highest(passes: Callable[[float], Awaitable[bool]], most: float, runs: int) -> float:
    """The highest value under `most` that passes, by bisection: exact to most ÷ 2^runs; 0 if none that was tried does."""
    low, high = 0.0, most
    for _ in range(runs):
        middle = (low + high) / 2
        if await passes(middle):
            low = middle
        else:
            high = middle
    return low


async def _run(channels: Sequence[Any], load: Load, label: str, progress: Progress | None) -> Turn:
    """One run from the first request to the last answer."""
    measurement = Measurement(load.slo, min(load.warmup_s, load.end_s), load.end_s)
    generator = Generator(channels, measurement, Prompts(load.seed), load.timeout_s, load.max_open, load.method)
    loads = WorkerLoads()
    watching = watch_loads(channels[0], loads) if load.watch else None
    telling = _tell(progress, label, load.end_s, generator) if progress else None
    async with _beside(watching), _beside(telling):
        await generator.run(load.arrivals())
    return Turn(measurement, loads)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None] | None) -> AsyncIterator[None]:
    """Run a coroutine as long as the block; None: nothing."""
    task = asyncio.create_task(work) if work else None
    try:
        yield
    finally:
        if task:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _tell(progress: Progress, label: str, end_s: float, generator: Generator) -> None:
    began_s = asyncio.get_running_loop().time()
    while True:
        now_s = min(asyncio.get_running_loop().time() - began_s, end_s)
        counts = f"{generator.sent} sent, {generator.open} open, {generator.failed} failed"
        progress(f"{label}: {now_s:.0f} of {end_s:.0f} s, {counts}")
        await asyncio.sleep(_TELL_S)
