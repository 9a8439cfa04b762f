"""What the router adds to a stream: time to the first token, and processor time for each message.

Real processes on this machine: a bus, a router, a worker, and a client. Every figure through the router has its twin straight
to the same worker, taken in turn in the same round: request by request for the first token, a second or so each for the rest.

First token: a simulated worker (2 ms a step), one and four streams at once. Messages: a worker without engine and 16 streams,
in bursts (as fast as they go), paced (one every 10 ms in each stream), and in requests of a single token. The processes share
the machine's cores, so messages/s are of the whole chain; what the router itself takes is its processor time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks import raw_worker
from benchmarks.machine import cpu_s
from benchmarks.report import Report, Spread, Table, percentile
from ladr.v1 import generation_pb2
from tests.load import channel_to, eligible
from tests.processes import ROOT, mesh

SIMULATED = {"LADR_WORKER__SIMULATED__STEP": "2ms", "LADR_WORKER__SLOTS": "32"}
STREAMS = 16
Target = tuple[str, str]  # address, method


@dataclass(frozen=True)
class Kind:
    """A kind of request to the worker without an engine."""

    name: str
    deltas: int
    pace_ms: int

    @property
    def request(self) -> bytes:
        sampling = generation_pb2.Sampling(max_tokens=self.deltas)
        return _request(model=raw_worker.MODEL, prompt=str(self.pace_ms), sampling=sampling)


KINDS = (Kind("bursts", 500, 0), Kind("paced", 50, 10), Kind("single token", 1, 0))


@dataclass(frozen=True)
class Flow:
    """What came in one part of a round, and the processor time that it took, by process."""

    messages: int
    requests: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds


Flows = list[tuple[Flow, Flow]]  # a round: direct, through the router


def run(quick: bool) -> Report:
    """Measure, in about a minute. Quick: one round of fractions of a second."""
    return asyncio.run(_run(rounds=1, part_s=0.1) if quick else _run(rounds=5, part_s=1.5))


async def _run(rounds: int, part_s: float) -> Report:
    first: dict[int, list[list[list[float]]]] = {1: [], 4: []}
    flows: dict[Kind, Flows] = {kind: [] for kind in KINDS}
    async with _chain() as chain:
        await chain.warm_up()
        for _ in range(rounds):
            for streams, found in first.items():
                found.append(await chain.first_s(streams, part_s))
            for kind, pairs in flows.items():
                pairs.append((await chain.flow(0, kind, part_s / 2), await chain.flow(1, kind, part_s)))
    tables = [_first_table(first), _rates_table(flows), _cpu_table(flows)]
    return Report(tables, [f"Medians of {rounds} rounds (least–greatest); first-token p99 over all rounds together."])


class _Chain:
    """The processes; a target's first entry is the worker itself, the second the router."""

    def __init__(
        self,
        client: asyncio.subprocess.Process,
        pids: dict[str, int],
        simulated: Sequence[Target],
        raw: Sequence[Target],
    ) -> None:
        self._client = client
        self._pids = {**pids, "client": client.pid}
        self._simulated = simulated
        self._raw = raw

    async def warm_up(self) -> None:
        await self.first_s(4, 0.1)
        await self._order(self._raw, STREAMS, 0.1, KINDS[0].request)

    async def first_s(self, streams: int, seconds: float) -> list[list[float]]:
        """Seconds to the first token: direct, and through the router."""
        request = _request(model="sim", prompt="hello", sampling=generation_pb2.Sampling(max_tokens=1))
        found: list[list[float]] = (await self._order(self._simulated, streams, seconds, request))["first_s"]
        return found

    async def flow(self, target: int, kind: Kind, seconds: float) -> Flow:
        before = {name: cpu_s(pid) for name, pid in self._pids.items()}
        done = await self._order([self._raw[target]], STREAMS, seconds, kind.request)
        took = {name: cpu_s(pid) - before[name] for name, pid in self._pids.items()}
        return Flow(done["messages"], len(done["first_s"][0]), done["seconds"], took)

    async def _order(self, targets: Sequence[Target], streams: int, seconds: float, request: bytes) -> dict[str, Any]:
        order = {"targets": targets, "streams": streams, "seconds": seconds, "request": request.hex()}
        assert self._client.stdin
        assert self._client.stdout
        self._client.stdin.write(json.dumps(order).encode() + b"\n")
        line = await self._client.stdout.readline()
        if not line:
            raise RuntimeError("the client ended; what it said is on stderr")
        done: dict[str, Any] = json.loads(line)
        return done


@asynccontextmanager
async def _chain() -> AsyncIterator[_Chain]:
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(mesh(1, worker=SIMULATED))
        raw = await _start(stack, "benchmarks.raw_worker", there.bus.address)
        assert raw.stdout
        port = int(await raw.stdout.readline())
        client = await _start(stack, "benchmarks.load_client")
        channel = await stack.enter_async_context(channel_to(there.router.address))
        await eligible(channel, "worker-1", raw_worker.NAME)
        method = "/ladr.v1.{}/Generate".format
        routed = (there.router.address, method("Router"))
        yield _Chain(
            client,
            {"worker": raw.pid, "router": there.router.pid},
            [(there.workers[0].address, method("Worker")), routed],
            [(f"127.0.0.1:{port}", method("Worker")), routed],
        )


async def _start(stack: AsyncExitStack, module: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start a Python module; it is killed when the stack is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        limit=1 << 24,
    )

    async def end() -> None:
        process.kill()
        await process.wait()

    stack.push_async_callback(end)
    return process


def _request(**fields: Any) -> bytes:
    data: bytes = generation_pb2.GenerateRequest(**fields).SerializeToString()
    return data


def _first_table(first: dict[int, list[list[list[float]]]]) -> Table:
    table = Table(
        "Time to the first token, simulated worker",
        ("streams", "direct p50 [ms]", "router p50 [ms]", "added p50 [ms]", "direct p99 [ms]", "router p99 [ms]"),
    )
    for streams, rounds in first.items():
        direct, routed = ([percentile(one[at], 0.5) * 1e3 for one in rounds] for at in (0, 1))
        added = [b - a for a, b in zip(direct, routed, strict=True)]
        tails = (percentile([s for one in rounds for s in one[at]], 0.99) * 1e3 for at in (0, 1))
        table.add(streams, Spread.of(direct), Spread.of(routed), Spread.of(added), *tails)
    return table


def _rates_table(flows: dict[Kind, Flows]) -> Table:
    table = Table(
        f"Messages of the whole chain, {STREAMS} streams",
        ("kind", "direct [1/s]", "router [1/s]", "router ÷ direct"),
    )
    for kind, pairs in flows.items():
        direct, routed = ([pair[at].per_s for pair in pairs] for at in (0, 1))
        ratios = [b / a for a, b in zip(direct, routed, strict=True)]
        table.add(kind.name, Spread.of(direct), Spread.of(routed), Spread.of(ratios))
    return table


def _cpu_table(flows: dict[Kind, Flows]) -> Table:
    table = Table(
        "Processor time for each message; for each request where it has a single token",
        ("kind", "client [µs]", "worker [µs]", "router [µs]", "router, one core [1/s]", "worker direct [µs]"),
    )
    for kind, pairs in flows.items():

        def each_us(flow: Flow, process: str, single: bool = kind.deltas == 1) -> float:
            return flow.cpu_s[process] * 1e6 / (flow.requests if single else flow.messages)

        routed = {who: [each_us(flow, who) for _, flow in pairs] for who in ("client", "worker", "router")}
        table.add(
            kind.name,
            *(Spread.of(found) for found in routed.values()),
            Spread.of([1e6 / us for us in routed["router"]]),
            Spread.of([each_us(flow, "worker") for flow, _ in pairs]),
        )
    return table
