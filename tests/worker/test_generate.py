"""The worker as a router sees it: load on the way, answers that go on here, and tokens that travel together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from ladr import errors
from ladr.config import WorkerSettings
from ladr.status import from_rpc
from ladr.v1 import fleet_pb2, generation_pb2, worker_pb2, worker_pb2_grpc
from services.worker.app import App

NOWHERE = "127.0.0.1:1"
Responses = list[generation_pb2.GenerateResponse]


class Caller:
    """Calls a worker."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = worker_pb2_grpc.WorkerStub(channel)

    def open(self, prompt: str = "hello", **fields: Any) -> Any:
        """The call itself."""
        return self._stub.Generate(generation_pb2.GenerateRequest(prompt=prompt, **fields), timeout=30)

    async def ask(self, prompt: str = "hello", **fields: Any) -> Responses:
        """A whole answer. Raises: LadrError."""
        try:
            return [response async for response in self.open(prompt, **fields)]
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error.code(), error.details() or "", error.trailing_metadata()) from None

    async def status(self) -> fleet_pb2.WorkerReport:
        return await self._stub.GetStatus(worker_pb2.GetStatusRequest())


@asynccontextmanager
async def worker(**settings: Any) -> AsyncIterator[Caller]:
    """A simulated worker that serves, with no bus to report to."""
    made = {"id": "w", "engine": "simulated", "port": 0, "http_port": 0, "bus": [NOWHERE], "models": [{"name": "sim"}]}
    made |= {"report_interval": "50ms", "drain_grace": "1s", "simulated": {"step": "1ms", "answer_tokens": 40}}
    app = App(WorkerSettings.model_validate(made | settings))
    stop = asyncio.Event()
    running = asyncio.create_task(app.run(stop))
    try:
        await app.serving.wait()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{app.server.port}") as channel:
            yield Caller(channel)
    finally:
        stop.set()
        await running


async def last_of(call: Any) -> generation_pb2.GenerateResponse:
    """The last message of a call of which some were read."""
    message = last = await call.read()
    while message is not grpc.aio.EOF:
        last, message = message, await call.read()
    return last


def text_of(responses: Responses) -> str:
    return "".join(response.delta.text for response in responses)


def ids_of(responses: Responses) -> list[int]:
    return [token for response in responses for token in response.delta.token_ids]


def numbers(load: generation_pb2.Load) -> tuple[int, int]:
    return load.running, load.queued


async def test_started_counts_its_request_and_finished_no_longer_does() -> None:
    async with worker(slots=1, queue_limit=4, simulated={"step": "1ms", "answer_tokens": 400}) as caller:
        before = await caller.status()
        alone = await caller.ask()
        assert numbers(alone[0].started.load) == (1, 0)
        assert numbers(alone[-1].finished.load) == (0, 0)
        assert before.load_revision < alone[0].started.load.revision < alone[-1].finished.load.revision
        first = caller.open()
        assert numbers((await first.read()).started.load) == (1, 0)
        second = caller.open()
        assert numbers((await second.read()).started.load) == (1, 1)
        ends = [(await last_of(call)).finished.load for call in (first, second)]
        assert [numbers(load) for load in ends] == [(1, 0), (0, 0)]
        assert ends[0].revision < ends[1].revision == (await caller.status()).load_revision


async def test_the_report_counts_what_was_taken_read_and_made() -> None:
    async with worker(slots=1, queue_limit=4, simulated={"answer_tokens": 500, "prefix_cache_tokens": 4096}) as caller:
        sampling = generation_pb2.Sampling(max_tokens=5)
        for _ in range(2):
            *_, last = await caller.ask("x" * 1024, sampling=sampling)
        assert last.finished.usage.cached_prompt_tokens == 256
        report = await caller.status()
        assert (report.accepted_total, report.tokens_total, report.prompt_tokens_total) == (2, 10, 258)
        calls = [caller.open("y" * 4000) for _ in range(3)]
        try:
            for call in calls:
                await call.read()
            report = await caller.status()
            assert (report.running, report.queued, report.accepted_total) == (1, 2, 5)
            assert report.queued_prompt_tokens == 2000
        finally:
            for call in calls:
                call.cancel()
        report = await caller.status()
        while report.running:
            report = await caller.status()
        assert (report.queued, report.queued_prompt_tokens, report.accepted_total) == (0, 0, 5)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
async def test_an_answer_that_another_worker_began_goes_on_at_the_next_token(share: float) -> None:
    async with worker() as one, worker() as other:
        whole = await one.ask()
        begun = whole[1 : 2 + int(share * (len(whole) - 3))]
        cut = sum(response.delta.token_count for response in begun)
        told = generation_pb2.Continuation(token_ids=ids_of(begun), token_count=cut, text=text_of(begun))
        rest = await other.ask(continuation=told, attempt=2)
    assert ids_of(begun) + ids_of(rest) == ids_of(whole)
    assert text_of(begun) + text_of(rest) == text_of(whole)
    assert rest[0].started.attempt == 2
    if share < 1:
        assert rest[1].delta.offset == cut
    assert rest[-1].finished.usage == whole[-1].finished.usage
    assert rest[-1].finished.reason == whole[-1].finished.reason
    assert (whole[-1].finished.resumed, rest[-1].finished.resumed) == (False, True)


async def test_a_continuation_is_refused_by_name_or_with_word_that_it_cannot_go_on() -> None:
    async with worker() as caller:
        with pytest.raises(errors.InvalidRequest) as refused:
            await caller.ask(continuation=generation_pb2.Continuation(token_ids=[60_000], token_count=1))
        assert refused.value.field == "continuation.token_ids"
        with pytest.raises(errors.CannotResume):
            await caller.ask(continuation=generation_pb2.Continuation(token_ids=[1, 2], token_count=2, text="x"))
        assert (await caller.status()).failed_total == 0


async def test_after_the_first_token_tokens_travel_together() -> None:
    async with worker(batch_tokens=16, batch_delay="30s") as caller, worker() as plain:
        together, apart = await caller.ask(), await plain.ask()
    first, *others, _ = [response.delta.token_count for response in together[1:-1]]
    assert first == 1
    assert len(others) in (1, 2)
    assert min(others) >= 16
    assert len(apart) > 2 * len(together)
    assert text_of(together) == text_of(apart)
    assert ids_of(together) == ids_of(apart)


async def test_a_token_leaves_when_it_has_waited_long_enough() -> None:
    async with worker(batch_tokens=64, batch_delay="1ms", simulated={"step": "50ms", "answer_tokens": 5}) as caller:
        assert [response.delta.token_count for response in (await caller.ask())[1:-1]] == [1] * 5
