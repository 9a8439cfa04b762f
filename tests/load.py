"""Requests for tests: one call with what became of it, and many at a steady rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from ladr.v1 import generation_pb2, router_pb2, router_pb2_grpc


@dataclass
class Outcome:
    """What one request saw; times are monotonic seconds."""

    began_s: float
    workers: list[str] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)
    first_s: float | None = None
    tokens: list[int] = field(default_factory=list)
    finished: int = 0
    error: grpc.StatusCode | None = None
    details: str = ""

    @property
    def ttft_s(self) -> float:
        assert self.first_s is not None
        return self.first_s - self.began_s


@asynccontextmanager
async def channel_to(address: str) -> AsyncIterator[grpc.aio.Channel]:
    channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
    try:
        yield channel
    finally:
        await channel.close()


async def ask(channel: grpc.aio.Channel, prompt: str = "hello", timeout_s: float = 20.0, **fields: object) -> Outcome:
    """One request to its end."""
    outcome = Outcome(time.monotonic())
    request = generation_pb2.GenerateRequest(prompt=prompt, **fields)
    call = router_pb2_grpc.RouterStub(channel).Generate(request, timeout=timeout_s)
    try:
        async for message in call:
            kind = message.WhichOneof("event")
            if kind == "started":
                outcome.workers.append(message.started.worker_id)
                outcome.attempts.append(message.started.attempt)
                outcome.started_s.append(time.monotonic())
            elif kind == "delta":
                outcome.first_s = outcome.first_s or time.monotonic()
                assert message.delta.offset == len(outcome.tokens)
                outcome.tokens.extend(message.delta.token_ids)
            else:
                outcome.finished += 1
                assert message.finished.usage.completion_tokens == len(outcome.tokens), "tokens were lost"
    except grpc.aio.AioRpcError as error:
        outcome.error, outcome.details = error.code(), error.details() or ""
    finally:
        call.cancel()
    return outcome


class Load:
    """Requests at a steady rate, whatever becomes of them, until the block ends; `outcomes` are complete then."""

    def __init__(self, channel: grpc.aio.Channel, per_s: float, **fields: object) -> None:
        self._channel = channel
        self._gap_s = 1 / per_s
        self._fields = fields
        self._tasks: set[asyncio.Task[None]] = set()
        self.outcomes: list[Outcome] = []

    async def __aenter__(self) -> Load:
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)
        await asyncio.gather(*self._tasks)

    async def _drive(self) -> None:
        next_s = time.monotonic()
        while True:
            task = asyncio.create_task(self._one())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            next_s += self._gap_s
            await asyncio.sleep(next_s - time.monotonic())

    async def _one(self) -> None:
        self.outcomes.append(await ask(self._channel, **self._fields))


async def until(true: Callable[[], bool], within_s: float, what: str) -> float:
    """Wait until `true()`; gives the seconds that it took."""
    began_s = time.monotonic()
    while not true():
        if time.monotonic() - began_s > within_s:
            raise AssertionError(f"not within {within_s} s: {what}")
        await asyncio.sleep(0.01)
    return time.monotonic() - began_s


async def workers_of(channel: grpc.aio.Channel) -> dict[str, router_pb2.WorkerInfo]:
    answer = await router_pb2_grpc.RouterStub(channel).ListWorkers(router_pb2.ListWorkersRequest())
    return {info.report.worker_id: info for info in answer.workers}


async def eligible(channel: grpc.aio.Channel, *names: str, within_s: float = 10.0) -> float:
    """Wait until just these workers are eligible; gives the seconds that it took."""
    began_s = time.monotonic()
    while {name for name, info in (await workers_of(channel)).items() if info.eligible} != set(names):
        assert time.monotonic() - began_s < within_s, await workers_of(channel)
        await asyncio.sleep(0.02)
    return time.monotonic() - began_s
