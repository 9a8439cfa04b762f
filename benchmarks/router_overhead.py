"""What stands between client and worker adds to a stream: time to the first token, and processor time for each token.

Real processes on this machine: a bus, workers, a client, and four ways between the two: a router, a router of two processes on
one port, a router with gRPC's older poller (`router.event_engine: off`), and Envoy with one event loop. Beside them the direct
way, and the client that looks aside: it watches the router's table and picks by itself. All are taken in turn in the same
round: request by request for the first token, a second or so each for the rest. The client has eight connections to each.

First token: a simulated worker (2 ms a step), one and four streams at once. Tokens: a worker without engine and 16 streams, as
fast as they go, by one and by eight tokens a message; paced (one every 10 ms in each stream); and in requests of a single
token. Then simulated workers (2 ms a step, 4 streams of 256 tokens) with `worker.batch_tokens` 1 and 8. The processes share
the machine's cores, so tokens/s are of the whole chain; what each itself takes is its processor time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks import envoy, raw_worker
from benchmarks.fleet import MODEL, fleet
from benchmarks.helper import Helper, helper
from benchmarks.load_client import LOOK_ASIDE
from benchmarks.machine import cpu_s, family
from benchmarks.report import Report, Spread, Table, percentile
from benchmarks.routing_mesh import RIVAL
from ladr.v1 import generation_pb2
from tests.load import channel_to, eligible

BATCHED = "sim8"
PACE = {"step": "2ms", "growth": 0, "answer_tokens": 1_000}
WORKERS: tuple[dict[str, Any], ...] = (
    {"id": "plain", "slots": 32, "simulated": PACE},
    {"id": "batched", "slots": 32, "simulated": PACE, "models": [{"name": BATCHED}], "batch_tokens": 8},
)
ROUTERS: Mapping[str, dict[str, Any]] = {
    "router": {},
    "2 processes": {"processes": 2},
    "older poller": {"event_engine": "off"},
}
DIRECT, ENVOY = "direct", "Envoy"
_WORKER, _ROUTER = envoy.GENERATE, "/ladr.v1.Router/Generate"
Target = tuple[str, str]  # address, method


@dataclass(frozen=True)
class Kind:
    """A kind of request. `pace_ms`: of the worker without an engine."""

    name: str
    model: str
    streams: int
    tokens: int
    batch: int = 1
    pace_ms: int = 0

    @property
    def request(self) -> bytes:
        sampling = generation_pb2.Sampling(max_tokens=self.tokens)
        return _request(model=self.model, prompt=f"{self.pace_ms} {self.batch}", sampling=sampling)


RAW = raw_worker.MODEL
KINDS = (
    Kind("bursts", RAW, 16, 496),
    Kind("bursts, 8 a message", RAW, 16, 992, batch=8),
    Kind("paced", RAW, 16, 50, pace_ms=10),
    Kind("batch_tokens 1", MODEL, 4, 256),
    Kind("batch_tokens 8", BATCHED, 4, 256),
    Kind("single token", RAW, 16, 1),
)


@dataclass(frozen=True)
class Flow:
    """What one kind took on one way in one round; processor time by process."""

    tokens: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def per_s(self) -> float:
        return self.tokens / self.seconds

    def us(self, process: str) -> float:
        """Processor time for each token."""
        return self.cpu_s[process] * 1e6 / self.tokens


Flows = dict[Kind, list[dict[str, Flow]]]  # a round: by way
Firsts = dict[int, list[dict[str, list[float]]]]  # by streams; a round: seconds, by way


def run(quick: bool) -> Report:
    """Measure, in about four minutes. Quick: one round of fractions of a second."""
    return asyncio.run(_run(rounds=1, part_s=0.1) if quick else _run(rounds=5, part_s=1.0))


async def _run(rounds: int, part_s: float) -> Report:
    first: Firsts = {1: [], 4: []}
    flows: Flows = {kind: [] for kind in KINDS}
    async with _chain() as chain:
        await chain.warm_up()
        for _ in range(rounds):
            for streams, found in first.items():
                found.append(await chain.first_s(streams, 3 * part_s))
            for kind, ways in flows.items():
                ways.append({way: await chain.flow(way, kind, part_s) for way in chain.ways})
        between = [way for way in chain.ways if way in ROUTERS or way == ENVOY]
        tables = [_first_table(first), _between_table(flows, between), _client_table(flows), _rates_table(flows)]
    notes = [f"Medians of {rounds} rounds (least–greatest); first-token p99 over all rounds together."]
    if envoy.binary() is None:
        notes.append(envoy.MISSING)
    return Report(tables, notes)


class _Chain:
    """The processes. `targets`: by way and model. `pids`: by way, the one process between client and worker."""

    def __init__(self, client: Helper, targets: Mapping[str, Mapping[str, Target]], pids: Mapping[str, Any]) -> None:
        self._client = client
        self._targets = targets
        self._pids = pids
        self.ways = tuple(targets)

    async def warm_up(self) -> None:
        await self.first_s(4, 0.1)
        for way in self.ways:
            for model in (RAW, BATCHED):
                await self.flow(way, Kind("warm", model, 16, 8), 0.02)

    async def first_s(self, streams: int, seconds: float) -> dict[str, list[float]]:
        """Seconds to the first token, by way."""
        request = _request(model=MODEL, prompt="hello", sampling=generation_pb2.Sampling(max_tokens=1))
        targets = [self._targets[way][MODEL] for way in self.ways]
        done = await self._order(targets, streams, seconds, request)
        return dict(zip(self.ways, done["first_s"], strict=True))

    async def flow(self, way: str, kind: Kind, seconds: float) -> Flow:
        pids = {"client": [self._client.pid], "between": self._pids[way][kind.model] if way in self._pids else []}
        before = {name: sum(map(cpu_s, each)) for name, each in pids.items()}
        done = await self._order([self._targets[way][kind.model]], kind.streams, seconds, kind.request)
        took = {name: sum(map(cpu_s, each)) - before[name] for name, each in pids.items()}
        return Flow(len(done["first_s"][0]) * kind.tokens, done["seconds"], took)

    async def _order(self, targets: Sequence[Target], streams: int, seconds: float, request: bytes) -> dict[str, Any]:
        order = {"targets": targets, "streams": streams, "seconds": seconds, "request": request.hex()}
        done: dict[str, Any] = await self._client.ask(order)
        return done


@asynccontextmanager
async def _chain() -> AsyncIterator[_Chain]:
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(fleet(WORKERS))
        routers = {
            name: await stack.enter_async_context(there.router(**settings)) for name, settings in ROUTERS.items()
        }
        raw = await stack.enter_async_context(helper("benchmarks.raw_worker", there.bus.address))
        workers = {
            RAW: f"127.0.0.1:{await raw.result()}",
            MODEL: there.workers["plain"].address,
            BATCHED: there.workers["batched"].address,
        }
        for router in routers.values():
            async with channel_to(router.address) as channel:
                await eligible(channel, *there.workers, raw_worker.NAME)
        targets = {DIRECT: {model: (address, _WORKER) for model, address in workers.items()}}
        pids: dict[str, dict[str, list[int]]] = {}
        for name, router in routers.items():
            targets[name] = dict.fromkeys(workers, (router.address, _ROUTER))
            pids[name] = dict.fromkeys(workers, family(router.pid))
        if envoy.binary():
            targets[ENVOY], pids[ENVOY] = {}, {}
            for model, address in workers.items():
                proxy = await stack.enter_async_context(envoy.envoy([address]))
                assert proxy
                targets[ENVOY][model] = (proxy.addresses[f"envoy {RIVAL}"], _WORKER)
                pids[ENVOY][model] = [proxy.pid]
        targets[LOOK_ASIDE] = dict.fromkeys(workers, (routers["router"].address, LOOK_ASIDE))
        client = await stack.enter_async_context(helper("benchmarks.load_client"))
        yield _Chain(client, targets, pids)


def _request(**fields: Any) -> bytes:
    data: bytes = generation_pb2.GenerateRequest(**fields).SerializeToString()
    return data


def _first_table(first: Firsts) -> Table:
    table = Table(
        "Time to the first token, simulated worker",
        ("streams", "way", "p50 [ms]", "added p50 [ms]", "of direct [%]", "p99 [ms]"),
    )
    for streams, rounds in first.items():
        direct = [percentile(one[DIRECT], 0.5) * 1e3 for one in rounds]
        for way in rounds[0]:
            medians = [percentile(one[way], 0.5) * 1e3 for one in rounds]
            added = [b - a for a, b in zip(direct, medians, strict=True)]
            ratios = [100 * b / a for a, b in zip(direct, medians, strict=True)]
            tail = percentile([s for one in rounds for s in one[way]], 0.99) * 1e3
            table.add(streams, way, Spread.of(medians), Spread.of(added), Spread.of(ratios), tail)
    return table


def _between_table(flows: Flows, ways: Sequence[str]) -> Table:
    table = Table(
        "Processor time of what is in between, for each token (single token: for each request)",
        ("kind", *(f"{way} [µs]" for way in ways)),
    )
    for kind, rounds in flows.items():
        table.add(kind.name, *(Spread.of([one[way].us("between") for one in rounds]) for way in ways))
    return table


def _client_table(flows: Flows) -> Table:
    ways = (DIRECT, "router", LOOK_ASIDE)
    table = Table(
        "Processor time of the client, for each token (single token: for each request)",
        ("kind", *(f"{way} [µs]" for way in ways), "look-aside − direct [µs]"),
    )
    for kind, rounds in flows.items():
        added = [one[LOOK_ASIDE].us("client") - one[DIRECT].us("client") for one in rounds]
        table.add(kind.name, *(Spread.of([one[way].us("client") for one in rounds]) for way in ways), Spread.of(added))
    return table


def _rates_table(flows: Flows) -> Table:
    ways = list(next(iter(flows.values()))[0])
    table = Table("Tokens of the whole chain", ("kind", *(f"{way} [1/s]" for way in ways), "router ÷ direct"))
    for kind, rounds in flows.items():
        ratios = [one["router"].per_s / one[DIRECT].per_s for one in rounds]
        table.add(kind.name, *(Spread.of([one[way].per_s for one in rounds]) for way in ways), Spread.of(ratios))
    return table
