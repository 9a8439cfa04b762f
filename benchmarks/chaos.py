"""Durable jobs while workers, routers, buses and Redis are killed: how many are lost, and how many attempts were repeated.

`make chaos JOBS=10000 KILLS=200 SEED=1`. Two routers, two buses, three simulated workers and a Redis (append-only file, fsync
always), each a process. While the jobs run, one of them after the other is killed (SIGKILL) by a seeded choice and started
again a little later. The client submits by whichever router answers, again by the same name until it is confirmed. In the
end every job must have succeeded, with exactly one result, whose tokens are all there.

"Accepted twice" is counted from the outside: each result that the routers tell is compared with what they told before.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from ladr import Client, LadrError, job_request
from ladr.errors import AlreadyExists
from ladr.v1 import generations_pb2 as pb
from tests.processes import SIMULATED, Process
from tests.redis_server import RedisServer

TOKENS = 8
_SLOTS = 16  # of each of three workers
_BATCHES = 40
_SUBMITTING = 0.7  # share of the time of the killing in which jobs are submitted
_DOWN_S = (0.1, 1.0)  # how long one that was killed is away
_ROUTER = {
    "LADR_ROUTER__JOBS__STORE": "redis",
    "LADR_ROUTER__JOBS__LEASE": "2s",
    "LADR_ROUTER__JOBS__ATTEMPTS": "50",
    "LADR_ROUTER__JOBS__MAX_RUNNING": "32",
}
_WORKER = {**SIMULATED, "LADR_WORKER__SLOTS": str(_SLOTS), "LADR_WORKER__SIMULATED__ANSWER_TOKENS": str(TOKENS)}


@dataclass
class Outcome:
    """What was found; `wrong` has a sentence for each thing that must not be."""

    jobs: int
    kills: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    twice: int = 0
    repeated: int = 0
    redelivered: int = 0
    dead: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def complain(self, about: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(about)


class Scene:
    """The processes, and how to kill one."""

    def __init__(
        self, redis: RedisServer, buses: list[Process], routers: list[Process], workers: list[Process]
    ) -> None:
        self.redis = redis
        self.buses, self.routers, self.workers = buses, routers, workers

    async def kill(self, kind: str, rng: Random) -> None:
        """Kill one of a kind, and start it again after a while."""
        down_s = rng.uniform(*_DOWN_S)
        if kind == "redis":
            await asyncio.to_thread(self.redis.kill)
            await asyncio.sleep(down_s)
            await asyncio.to_thread(self.redis.start)
            return
        victim = rng.choice({"worker": self.workers, "router": self.routers, "bus": self.buses}[kind])
        await victim.kill()
        await asyncio.sleep(down_s)
        await victim.start()


async def chaos(jobs: int, kills: int, seed: int, over_s: float, told: Callable[[str], object] = print) -> Outcome:
    """Run it. The kills are spread over about `over_s` seconds, and the jobs have as long again and two minutes to end."""
    rng = Random(seed)
    outcome = Outcome(jobs)
    began_s = time.monotonic()
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(RedisServer(directory, appendonly=True))
        # So slow that the fleet is busy for as long as there is killing: two thirds of its slots, at 1.5 steps a token.
        step_s = over_s * 2 * _SLOTS / max(jobs, 1) / TOKENS / 1.5
        scene = await _start(stack, redis, {"LADR_WORKER__SIMULATED__STEP": f"{int(step_s * 1000) + 1}ms"})
        clients = [await stack.enter_async_context(Client(router.address)) for router in scene.routers]
        watch = Watch(clients, outcome)
        tasks = [
            asyncio.create_task(_kill(scene, kills, over_s, rng, outcome, told)),
            asyncio.create_task(watch.peek(Random(seed))),
        ]
        try:
            await _submit(clients, jobs, over_s * _SUBMITTING, watch.confirmed, told)
            await tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await watch.all_ended(jobs, time.monotonic() + over_s + 120, told)
        await watch.judge(jobs)
    outcome.seconds = time.monotonic() - began_s
    return outcome


async def _start(stack: AsyncExitStack, redis: RedisServer, pace: dict[str, str]) -> Scene:
    async def process(service: str, **environment: str) -> Process:
        made = Process(service, environment)
        stack.push_async_callback(made.kill)
        return await made.start()

    store = {"LADR_METRICS__BACKEND": "redis", "LADR_METRICS__REDIS_URL": redis.url}
    buses = [await process("metrics", **store) for _ in range(2)]
    there = ",".join(bus.address for bus in buses)
    router = {**_ROUTER, "LADR_ROUTER__JOBS__REDIS_URL": redis.url, "LADR_ROUTER__BUS": there}
    routers = [await process("router", **router) for _ in range(2)]
    workers = [
        await process("worker", **{**_WORKER, **pace, "LADR_WORKER__BUS": there, "LADR_WORKER__ID": f"worker-{n}"})
        for n in range(3)
    ]
    return Scene(redis, buses, routers, workers)


async def _kill(
    scene: Scene, kills: int, over_s: float, rng: Random, outcome: Outcome, told: Callable[[str], object]
) -> None:
    kinds = [*itertools.islice(itertools.cycle(("worker", "router", "redis", "worker", "router", "bus")), kills)]
    rng.shuffle(kinds)
    gap_s = over_s / max(kills, 1)
    next_s = time.monotonic()
    for number, kind in enumerate(kinds, 1):
        next_s += gap_s
        await asyncio.sleep(max(0.0, next_s - time.monotonic()))
        await scene.kill(kind, rng)
        outcome.kills[kind] += 1
        if number % 20 == 0:
            told(f"{number} killed")


async def _submit(
    clients: list[Client], jobs: int, over_s: float, confirmed: list[str], told: Callable[[str], object]
) -> None:
    """Each name until it is confirmed; half of them as streams, half one by one."""
    names = [_name(n) for n in range(jobs)]
    size = -(-jobs // _BATCHES)
    turn = itertools.cycle(clients)
    began_s = time.monotonic()
    for number, start in enumerate(range(0, jobs, size)):
        await asyncio.sleep(max(0.0, began_s + number * over_s / _BATCHES - time.monotonic()))
        part = names[start : start + size]
        if number % 2:
            for name in part:
                await _until_done(turn, lambda client, name=name: client.submit_generation(**_asked(name)))  # type: ignore[misc]
        else:
            await _until_done(turn, lambda client, part=part: _stream(client, part))  # type: ignore[misc]
        confirmed += part
        if number % 8 == 7:
            told(f"{start + len(part)} submitted")


async def _stream(client: Client, names: list[str]) -> None:
    """Raises: LadrError: not all were taken."""
    answer = await client.submit_generations([job_request(**_asked(name)) for name in names], timeout=30)
    if answer.refused:
        raise LadrError(answer.refusals[0].error.reason)


def _name(n: int) -> str:
    return f"job-{n:06}"


def _asked(name: str) -> dict[str, Any]:
    return {"prompt": f"hello {name}", "request_id": name, "max_tokens": TOKENS, "temperature": 0.0}


async def _until_done(turn: Any, call: Callable[[Client], Awaitable[Any]]) -> Any:
    """What the first router says that answers."""
    while True:
        try:
            return await call(next(turn))
        except AlreadyExists:
            raise
        except LadrError:
            await asyncio.sleep(0.05)


class Watch:
    """Looks at jobs from the outside, at whichever router answers."""

    def __init__(self, clients: list[Client], outcome: Outcome) -> None:
        self._turn = itertools.cycle(clients)
        self._outcome = outcome
        self._results: dict[str, bytes] = {}
        self.confirmed: list[str] = []  # names that a router has confirmed

    async def peek(self, rng: Random) -> None:
        """Look at jobs all the time, to know later what their results were, until cancelled."""
        while True:
            await asyncio.sleep(0.05)
            if self.confirmed and (job := await self._get(rng.choice(self.confirmed))) is not None:
                if job.state == pb.GENERATION_STATE_SUCCEEDED:
                    self._look(job)
            elif self.confirmed:
                self._outcome.complain("a job that was confirmed is not there")

    async def all_ended(self, jobs: int, until_s: float, told: Callable[[str], object]) -> None:
        left = -1
        while time.monotonic() < until_s:
            live = [job for state in ("scheduled", "queued", "running") for job in await self._list(state)]
            if not live:
                return
            if len(live) != left:
                left = len(live)
                told(f"{left} left")
            await asyncio.sleep(1)
        self._outcome.complain("jobs did not end in time")

    async def judge(self, jobs: int) -> None:
        """Every job, twice, by either router: it is there, has succeeded, and its result is whole and always the same."""
        outcome = self._outcome
        for n in range(jobs):
            for _ in range(2):
                job = await self._get(_name(n))
                if job is None:
                    outcome.lost += 1
                    outcome.complain(f"{_name(n)} is lost")
                    break
                self._look(job)
            else:
                outcome.repeated += job.attempts > 1
                outcome.redelivered += job.redeliveries > 0

    def _look(self, job: pb.Generation) -> None:
        outcome = self._outcome
        if job.state != pb.GENERATION_STATE_SUCCEEDED:
            outcome.dead += 1
            outcome.complain(f"{job.request_id} is {pb.GenerationState.Name(job.state)}: {job.error.message}")
            return
        result = job.result.SerializeToString(deterministic=True)
        if self._results.setdefault(job.request_id, result) != result:
            outcome.twice += 1
            outcome.complain(f"{job.request_id} has two results")
        if not job.result.finished.usage.completion_tokens == len(job.result.token_ids) == TOKENS:
            outcome.complain(f"{job.request_id} has {len(job.result.token_ids)} tokens")

    async def _get(self, name: str) -> pb.Generation | None:
        async def call(client: Client) -> pb.Generation | None:
            try:
                return await client.get_generation(name)
            except LadrError as error:
                if error.reason == "NOT_FOUND":
                    return None
                raise

        found: pb.Generation | None = await _until_done(self._turn, call)
        return found

    async def _list(self, state: Any) -> list[pb.Generation]:
        async def call(client: Client) -> list[pb.Generation]:
            return [job async for job in client.generations(state)]

        found: list[pb.Generation] = await _until_done(self._turn, call)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--over", type=float, help="seconds that the kills are spread over; else 2 for each")
    args = parser.parse_args()
    over_s = args.over or 2.0 * args.kills
    outcome = asyncio.run(
        chaos(args.jobs, args.kills, args.seed, over_s, lambda text: print(text, file=sys.stderr, flush=True))
    )
    print(
        json.dumps(
            {
                "jobs": outcome.jobs,
                "kills": dict(outcome.kills),
                "lost": outcome.lost,
                "accepted twice": outcome.twice,
                "not succeeded": outcome.dead,
                "jobs with repeated attempts": outcome.repeated,
                "of those, redelivered": outcome.redelivered,
                "seconds": round(outcome.seconds, 1),
                "wrong": outcome.wrong,
            }
        )
    )
    sys.exit(1 if outcome.wrong else 0)


if __name__ == "__main__":
    main()
