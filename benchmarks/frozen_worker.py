"""What a frozen worker costs the requests of the others: three simulated workers, one of them stopped (SIGSTOP).

A steady 40 requests a second. In each round: 3 s undisturbed, then one worker is frozen for 2 s and wakes again. Compared
are the times to the first token of the requests that were sent to the two others first, in those seconds and just before.
Requests that the router had sent to the frozen worker, and had to take back, are told apart. Unrouted: from SIGSTOP until
the router says that the worker gets nothing; back: from SIGCONT until it gets requests again, without anybody's help.
"""

from __future__ import annotations

import asyncio
import signal
import time

import grpc

from benchmarks.report import Report, Spread, Table, percentile
from tests.load import Load, Outcome, channel_to, eligible
from tests.processes import Mesh, mesh

WORKERS = ("worker-1", "worker-2", "worker-3")
RATE_PER_S = 40
ROOM = {"LADR_WORKER__SLOTS": "64"}  # two workers can take the load of three: what is measured is not a queue


def run(quick: bool) -> Report:
    """Measure, in about a minute. Quick: one round of a second each."""
    return asyncio.run(_run(rounds=1, part_s=1.0) if quick else _run(rounds=6, part_s=3.0))


async def _run(rounds: int, part_s: float) -> Report:
    before: list[list[Outcome]] = []
    during: list[list[Outcome]] = []
    unrouted_s: list[float] = []
    back_s: list[float] = []
    async with mesh(3, worker=ROOM) as there, channel_to(there.router.address) as channel:
        await eligible(channel, *WORKERS)
        for _ in range(rounds):
            async with Load(channel, RATE_PER_S) as calm:
                await asyncio.sleep(part_s)
            async with Load(channel, RATE_PER_S) as frozen:
                unrouted_s.append(await _freeze(there, channel))
                back_s.append(await _wake(there, channel))
            before.append(calm.outcomes)
            during.append(frozen.outcomes)
    return Report([_tails(before, during), _times(unrouted_s, back_s)], [_fate(during)])


async def _freeze(there: Mesh, channel: grpc.aio.Channel) -> float:
    began_s = time.monotonic()
    there.workers[1].send(signal.SIGSTOP)
    await eligible(channel, "worker-1", "worker-3")
    took_s = time.monotonic() - began_s
    await asyncio.sleep(max(0.0, 2 - took_s))
    return took_s


async def _wake(there: Mesh, channel: grpc.aio.Channel) -> float:
    there.workers[1].send(signal.SIGCONT)
    return await eligible(channel, *WORKERS)


def _others(outcomes: list[Outcome]) -> list[float]:
    """First-token times, in ms, of requests that were sent to the two other workers and to no one else."""
    return [o.ttft_s * 1e3 for o in outcomes if o.attempts == [1] and o.workers != ["worker-2"]]


def _tails(before: list[list[Outcome]], during: list[list[Outcome]]) -> Table:
    table = Table(
        "First token of requests to the others", ("percentile", "before [ms]", "one frozen [ms]", "frozen ÷ before")
    )
    for share in (0.5, 0.99):
        calm = [percentile(_others(one), share) for one in before]
        frozen = [percentile(_others(one), share) for one in during]
        ratios = [b / a for a, b in zip(calm, frozen, strict=True)]
        table.add(f"p{share * 100:.0f}", Spread.of(calm), Spread.of(frozen), Spread.of(ratios))
    return table


def _times(unrouted_s: list[float], back_s: list[float]) -> Table:
    table = Table("The frozen worker", ("", "[s]"))
    table.add("unrouted after SIGSTOP", Spread.of(unrouted_s))
    table.add("back after SIGCONT", Spread.of(back_s))
    return table


def _fate(during: list[list[Outcome]]) -> str:
    every = [outcome for one in during for outcome in one]
    moved = sum(o.attempts[-1:] > [1] for o in every)
    failed = sum(o.error is not None or o.finished != 1 for o in every)
    return f"{len(every)} requests while one was frozen: {moved} were taken back from it and sent elsewhere, {failed} failed."
