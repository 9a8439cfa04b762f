"""The router's way of a request, over real gRPC servers that play workers of all kinds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from random import Random
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status

from ladr.config import RouterSettings
from ladr.errors import (
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    NotFound,
    NoWorker,
    Overloaded,
    Unreachable,
    WorkerLost,
)
from ladr.status import to_status
from ladr.v1 import fleet_pb2, generation_pb2, metrics_pb2
from tests.load import until
from tests.scene import FINISHED, STARTED, Behaviour, Hanging, answers, delta, ends_early, fails, scene


async def test_an_answer_passes_unchanged_and_everything_is_given_back() -> None:
    async with scene(a=answers) as s:
        assert await s.ask() == [STARTED, delta(0), delta(1), delta(2), FINISHED]
        assert s.at_rest()


async def test_the_worker_is_told_name_attempt_and_id_and_gets_the_rest_untouched() -> None:
    seen: list[generation_pb2.GenerateRequest] = []

    async def looks(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        seen.append(request)
        yield FINISHED

    async with scene(RouterSettings(aliases={"chat": "m"}), a=looks) as s:
        await s.ask(model="chat", session_id="s")
        await s.ask(request_id="mine")
    assert [(r.model, r.attempt, r.prompt) for r in seen] == [("m", 1, "x")] * 2
    assert seen[0].session_id == "s"
    assert len(seen[0].request_id) == 36
    assert seen[1].request_id == "mine"


async def is_another_server(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
    yield STARTED


@pytest.mark.parametrize(
    "broken",
    [
        fails(Unreachable("x")),
        fails(EngineFailed("x")),
        fails(Overloaded("x")),
        fails(NotFound("it was unloaded a moment ago")),
        ends_early,
        is_another_server,
    ],
)
async def test_before_the_first_token_another_worker_is_tried(broken: Behaviour) -> None:
    async with scene(a=broken, b=answers) as s:
        for _ in range(6):
            s.hear()
            assert (await s.ask())[-4:] == [delta(0), delta(1), delta(2), FINISHED]
        assert s.at_rest()


async def test_without_another_worker_a_lost_one_ends_the_answer_and_nothing_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ladr.routing.binder._RESUME_PATIENCE_S", 0.2)
    async with scene(a=fails(Unreachable("x"), after=2)) as s:
        seen = []
        with pytest.raises(WorkerLost):
            raw = generation_pb2.GenerateRequest(prompt="x").SerializeToString()
            async with aclosing(s.router.generate(raw, 5)) as messages:
                async for message in messages:
                    seen.append(generation_pb2.GenerateResponse.FromString(message))
        assert seen == [STARTED, delta(0), delta(1)]
        assert s.at_rest()


async def test_the_clients_own_errors_are_passed_on_and_no_second_worker_is_asked() -> None:
    async with scene(a=fails(InvalidRequest("no", field="prompt")), b=fails(InvalidRequest("no", field="prompt"))) as s:
        for _ in range(20):
            with pytest.raises(InvalidRequest) as refused:
                await s.ask()
            assert refused.value.field == "prompt"
        assert all(not s.router.board.ineligible(row, time.monotonic()) for row in s.router.board.rows())


async def test_a_fleet_that_is_full_is_asked_once_each() -> None:
    asked: Counter[str] = Counter()

    def full(name: str) -> Behaviour:
        async def behave(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
            asked[name] += 1
            await context.abort_with_status(
                rpc_status.to_status(to_status(Overloaded("full", retry_after=timedelta(seconds=3))))
            )
            yield FINISHED

        return behave

    async with scene(a=full("a"), b=full("b")) as s:
        with pytest.raises(Overloaded) as refused:
            await s.ask()
        assert refused.value.retry_after == timedelta(seconds=3)
        assert asked == {"a": 1, "b": 1}


async def test_a_worker_whose_engine_fails_at_once_does_not_attract_requests() -> None:
    async with scene(bad=fails(EngineFailed("x")), b=answers, c=answers) as s:
        attempts: Counter[str] = Counter()
        pick = s.router.binder.policy(time.monotonic()).pick

        def counting(candidates: Any, ask: Any, rng: Any, now_s: float) -> Any:
            row = pick(candidates, ask, rng, now_s)
            attempts[row.worker_id] += 1
            return row

        s.router.binder.main_policy.pick = counting  # type: ignore[method-assign]
        for _ in range(300):
            s.hear()
            assert (await s.ask())[-1] == FINISHED
            await asyncio.sleep(0.005)
        assert attempts["bad"] < 30


async def test_requests_that_wait_for_a_worker_leave_the_event_loop_alone() -> None:
    async with scene(a=answers) as s:
        s.hear(state=fleet_pb2.WORKER_STATE_DRAINING)
        waiting = [asyncio.create_task(s.ask()) for _ in range(50)]
        worst_s = 0.0
        for _ in range(40):
            began_s = time.monotonic()
            await asyncio.sleep(0.01)
            worst_s = max(worst_s, time.monotonic() - began_s)
            if waiting[0].done():
                break
        s.hear()
        done = await asyncio.gather(*waiting)
        assert all(answer[-1] == FINISHED for answer in done)
        assert worst_s < 0.2


async def test_without_a_worker_the_wait_has_an_end() -> None:
    async with scene(a=answers) as s:
        s.hear(state=fleet_pb2.WORKER_STATE_DRAINING)
        began_s = time.monotonic()
        with pytest.raises(NoWorker) as refused:
            await s.ask()
        assert 0.9 < time.monotonic() - began_s < 3
        assert refused.value.retry_after
        with pytest.raises(DeadlineExceeded):
            await s.ask(timeout_s=0.1)
        assert s.at_rest()


async def test_a_model_whose_worker_starts_again_is_unavailable_and_an_unknown_one_not_found() -> None:
    async with scene(a=answers) as s:
        s.hear(model=fleet_pb2.MODEL_STATE_LOADING)
        with pytest.raises(NoWorker):
            await s.ask(model="m")
        with pytest.raises(NotFound):
            await s.ask(model="other")


async def test_a_silent_worker_gives_its_waiting_request_to_another() -> None:
    silent = Hanging()
    async with scene(a=silent.behave) as s:
        asking = asyncio.create_task(s.ask())
        await until(lambda: silent.open > 0, 5, "a call")
        (row,) = s.router.board.rows()
        gone = metrics_pb2.FleetUpdate()
        gone.gone.add(worker_id="a", incarnation="1")
        s.router.board.hear(gone, time.monotonic())
        with pytest.raises(NoWorker):
            await asking
        await until(lambda: silent.open == 0, 5, "no call")
        assert row.in_flight == 0


async def test_a_caller_that_goes_away_while_its_worker_is_given_up_is_not_served_elsewhere() -> None:
    silent = Hanging()
    async with scene(a=silent.behave) as s:
        asking = asyncio.create_task(s.ask())
        await until(lambda: silent.open > 0, 5, "a call")
        (row,) = s.router.board.rows()
        (lease,) = row.leases
        asking.cancel()
        lease.revoke()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert s.at_rest()


async def test_a_storm_of_cancellations_leaves_exactly_nothing() -> None:
    silent = Hanging()
    async with scene(a=silent.behave, b=answers) as s:
        rng = Random(3)
        tasks = []
        for n in range(200):
            tasks.append(asyncio.create_task(s.ask()))
            if n % 3 == 0:
                await asyncio.sleep(rng.random() / 200)
            for task in rng.sample(tasks, min(len(tasks), 3)):
                task.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert s.at_rest()
        await until(lambda: silent.open == 0, 5, "no call")


async def test_past_the_bound_of_streams_the_caller_is_told_when_to_come_back() -> None:
    silent = Hanging()
    async with scene(RouterSettings(max_streams=2), a=silent.behave) as s:
        held = [asyncio.create_task(s.ask()) for _ in range(2)]
        await until(lambda: silent.open == 2, 5, "two calls")
        with pytest.raises(Overloaded) as refused:
            await s.ask()
        assert refused.value.retry_after
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert s.at_rest()
