"""What killed workers cost the streams of a mesh: nothing may be lost, repeated or changed.

Four simulated workers behind a router. 1,000 streams come, 25 a second, in turn through the router and look-aside, each with a
prompt of its own and 64 tokens. All the while a worker is killed (SIGKILL) every one to two seconds, drawn by a seeded
generator among those that serve, and started again; the last one is left alive. 200 such streams before, undisturbed, are what
times are compared with.

What each answer ought to be was asked of another worker before, which nobody disturbs: a simulated answer depends on its prompt
and the engine's seed alone. Identical: text, token ids and end are those. Lost and repeated are tokens that are missing in an
answer, and that came twice by their offsets or past its end. The longest gap is the longest wait for a token after the first.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Self

import grpc

from benchmarks.fleet import MODEL, Fleet, fleet
from benchmarks.report import Cell, Report, Table, percentile
from ladr.client import Client
from ladr.errors import BrokenStream, LadrError
from ladr.v1 import generation_pb2, worker_pb2_grpc
from tests.load import channel_to
from tests.processes import Process

WORKERS = 4
TOKENS = 64
STEP = "20ms"
RATE_PER_S = 25
BETWEEN_KILLS_S = (1.0, 2.0)
TIMEOUT_S = 60.0
AT_ONCE = 64  # of the answers asked for beforehand
WAYS = ("proxied", "look-aside")


def run(quick: bool) -> Report:
    """Measure, in about a minute. Quick: 120 streams, 40 undisturbed."""
    return asyncio.run(_run(40, 120) if quick else _run(200, 1_000))


@dataclass(frozen=True)
class Expected:
    """What an undisturbed worker says."""

    text: str
    token_ids: tuple[int, ...]


@dataclass
class Told:
    """What came of one stream; times in seconds."""

    way: str
    expected: Expected
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    repeated: int = 0
    reason: str = ""
    attempts: int = 0
    resumed: bool = False
    ttft_s: float = 0.0
    gap_s: float = 0.0
    e2e_s: float = 0.0

    @property
    def identical(self) -> bool:
        return not self.reason and (self.text, tuple(self.token_ids)) == (self.expected.text, self.expected.token_ids)

    @property
    def lost(self) -> int:
        return max(0, len(self.expected.token_ids) - len(self.token_ids))


async def _run(calm_streams: int, streams: int) -> Report:
    prompts = [f"story {number}" for number in range(calm_streams + streams)]
    expected = await _expected(prompts)
    workers = [
        {"id": f"worker-{n}", "slots": 32, "simulated": {"step": STEP, "growth": 0, "answer_tokens": 1_000}}
        for n in range(1, WORKERS + 1)
    ]
    async with (
        fleet(workers) as there,
        there.router() as router,
        Client(router.address) as proxied,
        Client(router.address, lookaside=True) as lookaside,
    ):
        clients = dict(zip(WAYS, (proxied, lookaside), strict=True))
        await asyncio.gather(*(client.complete("first", max_tokens=1) for client in clients.values()))
        calm = await _streams(clients, expected[:calm_streams])
        async with _Killer(there, Random(0)) as killer:
            disturbed = await _streams(clients, expected[calm_streams:])
    return Report([_counts(calm, disturbed), _times(calm, disturbed)], _notes(killer, disturbed))


async def _expected(prompts: Sequence[str]) -> list[tuple[str, Expected]]:
    """Each prompt with the answer of a worker that nobody disturbs, and that is faster."""
    free = asyncio.Semaphore(AT_ONCE)
    settings = {"slots": AT_ONCE, "batch_tokens": TOKENS, "simulated": {"step": "1ms", "answer_tokens": 1_000}}

    async def ask(channel: grpc.aio.Channel, prompt: str) -> tuple[str, Expected]:
        request = generation_pb2.GenerateRequest(prompt=prompt, model=MODEL)
        request.sampling.max_tokens = TOKENS
        text, token_ids = "", []
        async with free:
            call = worker_pb2_grpc.WorkerStub(channel).Generate(request)
            try:
                async for message in call:
                    text += message.delta.text
                    token_ids += message.delta.token_ids
            finally:
                call.cancel()
        return prompt, Expected(text, tuple(token_ids))

    async with (
        fleet([{"id": "undisturbed", **settings}]) as alone,
        channel_to(alone.workers["undisturbed"].address) as channel,
    ):
        return list(await asyncio.gather(*(ask(channel, prompt) for prompt in prompts)))


async def _streams(clients: dict[str, Client], expected: Sequence[tuple[str, Expected]]) -> list[Told]:
    """One stream for each at a steady rate, in turn by each way; ends when all have."""
    began_s = time.monotonic()
    tasks: list[asyncio.Task[Told]] = []
    async with asyncio.TaskGroup() as group:
        for number, ((prompt, answer), way) in enumerate(zip(expected, itertools.cycle(WAYS), strict=False)):
            await asyncio.sleep(began_s + number / RATE_PER_S - time.monotonic())
            tasks.append(group.create_task(_stream(clients[way], prompt, Told(way, answer))))
    return [task.result() for task in tasks]


async def _stream(client: Client, prompt: str, told: Told) -> Told:
    began_s = last_s = time.monotonic()
    try:
        async with client.generate(prompt, timeout=TIMEOUT_S, model=MODEL, max_tokens=TOKENS) as stream:
            async for event in stream:
                if not isinstance(event, generation_pb2.Delta):
                    continue
                now_s = time.monotonic()
                if told.token_ids:
                    told.gap_s = max(told.gap_s, now_s - last_s)
                else:
                    told.ttft_s = now_s - began_s
                last_s = now_s
                told.text += event.text
                told.token_ids += event.token_ids
            told.attempts = stream.started.attempt if stream.started else 0
            told.resumed = bool(stream.finished and stream.finished.resumed)
    except LadrError as error:
        told.reason = error.reason
        if isinstance(error, BrokenStream):
            told.repeated += max(
                0, int(error.metadata.get("expected_offset", 0)) - int(error.metadata.get("offset", 0))
            )
    told.repeated += max(0, len(told.token_ids) - len(told.expected.token_ids))
    told.e2e_s = time.monotonic() - began_s
    return told


class _Killer:
    """Kills workers and starts them again, as long as the block lasts; it is left once all of them serve."""

    def __init__(self, there: Fleet, rng: Random) -> None:
        self._serving = dict(there.workers)
        self._rng = rng
        self._over = asyncio.Event()
        self.kills: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._running

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as restarts:
            while not await self._over_within(self._rng.uniform(*BETWEEN_KILLS_S)):
                if len(self._serving) > 1:
                    name = self._rng.choice(sorted(self._serving))
                    restarts.create_task(self._kill(name, self._serving.pop(name)))

    async def _over_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return self._over.is_set()

    async def _kill(self, name: str, worker: Process) -> None:
        self.kills[name] += 1
        worker.send(signal.SIGKILL)
        await worker.ended()
        await worker.start()
        self._serving[name] = worker


def _counts(calm: list[Told], disturbed: list[Told]) -> Table:
    table = Table(
        "Streams",
        ("", "streams", "identical", "failed", "lost [tokens]", "repeated [tokens]", "moved before a token", "resumed"),
    )
    for name, told in _groups(calm, disturbed):
        table.add(
            name,
            len(told),
            sum(one.identical for one in told),
            sum(bool(one.reason) for one in told),
            sum(one.lost for one in told),
            sum(one.repeated for one in told),
            sum(one.attempts > 1 and not one.resumed for one in told),
            sum(one.resumed for one in told),
        )
    return table


def _times(calm: list[Told], disturbed: list[Told]) -> Table:
    kinds = ("first token", "longest gap", "end")
    columns = [f"{kind} {share} [ms]" for kind in kinds for share in ("p50", "p99")]
    table = Table("Times", ("", *columns))
    for name, told in (*_groups(calm, disturbed), ("resumed", [one for one in disturbed if one.resumed])):
        answered = [one for one in told if not one.reason]
        cells: list[Cell] = []
        for values in ([o.ttft_s for o in answered], [o.gap_s for o in answered], [o.e2e_s for o in answered]):
            cells += [percentile(values, share) * 1e3 if values else "–" for share in (0.5, 0.99)]
        table.add(name, *cells)
    return table


def _groups(calm: list[Told], disturbed: list[Told]) -> list[tuple[str, list[Told]]]:
    by_way = [(f"killed, {way}", [one for one in disturbed if one.way == way]) for way in WAYS]
    return [("undisturbed", calm), *by_way]


def _notes(killer: _Killer, disturbed: list[Told]) -> list[str]:
    reasons = Counter(one.reason for one in disturbed if one.reason)
    failed = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "none"
    return [f"{killer.kills.total()} kills of {len(killer.kills)} workers. Failed: {failed}."]
