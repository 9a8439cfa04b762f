"""What durable jobs cost the requests that somebody waits for: first tokens with 10,000 jobs waiting and with none.

A bus, a router and four simulated workers of 16 slots, each a process; 20 interactive requests a second. Rounds take turns:
first with no job there, then with the jobs waiting. Jobs run all the time of their rounds, in the slots that
`router.jobs.headroom` leaves them. The simulated step grows by a fifth from an empty worker to a full one.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks.report import Report, Spread, Table, percentile
from ladr import Client, job_request
from tests.load import Load, Outcome, channel_to, eligible
from tests.processes import mesh

RATE_PER_S = 20
WORKERS = 4
_WORKER = {
    "LADR_WORKER__SLOTS": "16",
    "LADR_WORKER__SIMULATED__STEP": "20ms",
    "LADR_WORKER__SIMULATED__GROWTH": "0.2",
    "LADR_WORKER__SIMULATED__PREFILL_TOKENS_PER_S": "2000",
    "LADR_WORKER__BATCH_TOKENS": "16",
    "LADR_WORKER__BATCH_DELAY": "200ms",
}
_PROMPT = "hello " * 100  # 75 ms to read


def run(quick: bool) -> Report:
    """Measure, in about two minutes. Quick: one round of two seconds each, with 200 jobs."""
    return asyncio.run(_run(rounds=1, part_s=2.0, jobs=200) if quick else _run(rounds=4, part_s=12.0, jobs=10_000))


async def _run(rounds: int, part_s: float, jobs: int) -> Report:
    without: list[list[Outcome]] = []
    waiting: list[list[Outcome]] = []
    ran: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        store = {
            "LADR_ROUTER__JOBS__STORE": "sqlite",
            "LADR_ROUTER__JOBS__PATH": str(Path(directory) / "jobs.db"),
        }
        async with (
            mesh(WORKERS, worker=_WORKER, router=store) as there,
            channel_to(there.router.address) as channel,
            Client(there.router.address) as client,
        ):
            await eligible(channel, *(f"worker-{n + 1}" for n in range(WORKERS)))
            for number in range(rounds):
                async with Load(channel, RATE_PER_S, prompt=_PROMPT) as calm:
                    await asyncio.sleep(part_s)
                names = [f"{number}-{n}" for n in range(jobs)]
                await client.submit_generations(job_request("hello", request_id=name, max_tokens=200) for name in names)
                await asyncio.sleep(1)
                async with Load(channel, RATE_PER_S, prompt=_PROMPT) as busy:
                    await asyncio.sleep(part_s)
                done = [job async for job in client.generations("succeeded")]
                ran.append(float(len(done)))
                without.append(calm.outcomes)
                waiting.append(busy.outcomes)
                await _clear(client)
    return Report([_tails(without, waiting), _jobs(ran)], [_fate([*without, *waiting])])


async def _clear(client: Client) -> None:
    """Leave no job behind for the next round."""
    live = [job.request_id for state in ("queued", "running") async for job in client.generations(state)]  # type: ignore[arg-type]
    for start in range(0, len(live), 64):
        await asyncio.gather(*(client.cancel_generation(name) for name in live[start : start + 64]))
    ended = [job.request_id async for job in client.generations()]
    for start in range(0, len(ended), 64):
        await asyncio.gather(*(client.delete_generation(name) for name in ended[start : start + 64]))


def _tails(without: list[list[Outcome]], waiting: list[list[Outcome]]) -> Table:
    table = Table("First token of interactive requests", ("percentile", "no jobs [ms]", "jobs wait [ms]", "ratio"))
    for share in (0.5, 0.99):
        calm, busy = (
            [percentile([o.ttft_s * 1e3 for o in one if o.first_s], share) for one in part]
            for part in (without, waiting)
        )
        table.add(
            f"p{share * 100:.0f}",
            Spread.of(calm),
            Spread.of(busy),
            Spread.of([b / a for a, b in zip(calm, busy, strict=True)]),
        )
    return table


def _jobs(ran: list[float]) -> Table:
    table = Table("Jobs answered beside them", ("", "jobs"))
    table.add("in a round", Spread.of(ran))
    return table


def _fate(every: list[list[Outcome]]) -> str:
    outcomes = [outcome for one in every for outcome in one]
    failed = sum(o.error is not None or o.finished != 1 for o in outcomes)
    return f"Of {len(outcomes)} interactive requests {failed} failed."
