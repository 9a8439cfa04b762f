"""Answers that go on at another worker, over real gRPC servers that play workers which die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from grpc_status import rpc_status

from ladr.answer import Assembly
from ladr.config import CascadeSettings, RouterSettings
from ladr.errors import CannotResume, EngineFailed, InvalidRequest, LadrError, Overloaded, Unreachable, WorkerLost
from ladr.status import to_status
from ladr.v1 import fleet_pb2, generation_pb2
from tests.load import until
from tests.scene import FINISHED, STARTED, Behaviour, Hanging, Scene, answers, delta, fails, scene

ANSWER = list(range(100, 112))


def worker(
    dies_after: int | None = None, error: LadrError | None = None, knows_ids: bool = True, name: str = "w"
) -> Behaviour:
    """Says the ANSWER, one token a delta; goes on where it is told to; may die after so many of its own."""

    async def behave(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield generation_pb2.GenerateResponse(started=generation_pb2.Started(worker_id=name, attempt=request.attempt))
        have = request.continuation.token_count
        if knows_ids:
            assert list(request.continuation.token_ids) == ANSWER[:have]
        assert request.continuation.text == "".join(f"{token} " for token in ANSWER[:have])
        for at in range(have, len(ANSWER)):
            if dies_after is not None and at - have >= dies_after:
                await context.abort_with_status(rpc_status.to_status(to_status(error or Unreachable("x"))))
            ids = [ANSWER[at]] if knows_ids else []
            yield generation_pb2.GenerateResponse(
                delta=generation_pb2.Delta(text=f"{ANSWER[at]} ", offset=at, token_count=1, token_ids=ids)
            )
        usage = generation_pb2.Usage(completion_tokens=len(ANSWER))
        yield generation_pb2.GenerateResponse(finished=generation_pb2.Finished(usage=usage, resumed=have > 0))

    return behave


async def assembled(s: Scene, **fields: Any) -> tuple[Assembly, str]:
    """What the client's own check makes of an answer, and its text."""
    assembly = Assembly()
    for message in await s.ask(**fields):
        assembly.take(message)
    assembly.end()
    return assembly, assembly.answer().text


WHOLE = "".join(f"{token} " for token in ANSWER)


@pytest.mark.parametrize("error", [Unreachable("x"), EngineFailed("x")])
@pytest.mark.parametrize("dies_after", [1, 3, 11])
async def test_another_worker_goes_on_where_the_first_stopped(error: LadrError, dies_after: int) -> None:
    async with scene(a=worker(dies_after, error), b=worker()) as s:
        for _ in range(4):
            s.hear()
            assembly, text = await assembled(s)
            assert text == WHOLE
            assert assembly.answer().token_ids == tuple(ANSWER)
        assert s.at_rest()


async def test_an_answer_survives_many_workers_each_of_which_says_one_token() -> None:
    async with scene(a=worker(1), b=worker(1), c=worker(1)) as s:
        asking = asyncio.create_task(assembled(s, timeout_s=20.0))
        while not asking.done():
            s.hear()  # each comes back
            await asyncio.sleep(0.05)
        assembly, text = await asking
        assert text == WHOLE
        assert assembly.finished is not None
        assert assembly.finished.resumed
        assert s.at_rest()


async def test_without_token_ids_the_text_alone_is_handed_over() -> None:
    async with scene(a=worker(2, knows_ids=False), b=worker(knows_ids=False)) as s:
        s.hear()
        _, text = await assembled(s)
        assert text == WHOLE


async def test_a_worker_that_begins_anew_instead_of_going_on_is_not_let_through() -> None:
    async with scene(a=worker(2), b=answers) as s:
        for _ in range(8):  # whichever is picked first
            s.hear()
            seen: list[generation_pb2.GenerateResponse] = []
            raw = generation_pb2.GenerateRequest(prompt="x").SerializeToString()
            try:
                async with aclosing(s.router.generate(raw, 5)) as messages:
                    async for message in messages:
                        seen.append(generation_pb2.GenerateResponse.FromString(message))
            except WorkerLost:
                pass
            offsets = [message.delta.offset for message in seen if message.HasField("delta")]
            assert offsets == list(range(len(offsets)))


async def test_a_fleet_that_cannot_go_on_says_so_and_is_asked_once_each() -> None:
    asked: list[int] = []

    async def refuses(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield STARTED
        if request.HasField("continuation"):
            asked.append(request.attempt)
            await context.abort_with_status(rpc_status.to_status(to_status(CannotResume("this engine cannot"))))
        yield delta(0)
        await context.abort_with_status(rpc_status.to_status(to_status(EngineFailed("x"))))

    async with scene(a=refuses, b=refuses, c=refuses) as s:
        with pytest.raises(WorkerLost):
            await s.ask()
        assert asked == [2, 3]
        assert s.at_rest()


async def test_a_silent_worker_in_the_middle_of_an_answer_is_replaced() -> None:
    async def stalls(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield STARTED
        if not request.HasField("continuation"):
            yield generation_pb2.GenerateResponse(
                delta=generation_pb2.Delta(text=f"{ANSWER[0]} ", token_count=1, token_ids=[ANSWER[0]])
            )
        await asyncio.sleep(30)

    async with scene(a=stalls) as s:
        asking = asyncio.create_task(assembled(s))
        (row,) = s.router.board.rows()
        await until(lambda: any(lease.first_token for lease in row.leases), 5, "a first token")
        async with scene(b=worker()) as other:
            s.ports.update(other.ports)
            s.hear()
            row.gone = True
            s.router.board.renew()
            for lease in list(row.leases):
                lease.revoke()
            _, text = await asking
        assert text == WHOLE
        assert s.at_rest()


async def test_of_two_workers_asked_the_first_to_answer_wins_and_the_other_is_cancelled() -> None:
    silent = Hanging()
    settings = RouterSettings(hedge_after=timedelta(milliseconds=50), policy="round-robin")
    async with scene(settings, a=silent.behave, b=answers) as s:
        messages = await s.ask()
        assert messages == [STARTED, delta(0), delta(1), delta(2), FINISHED]
        assert s.at_rest()
        await until(lambda: silent.open == 0, 5, "no call")


async def test_hedges_keep_to_their_budget() -> None:
    silent = Hanging()
    settings = RouterSettings(hedge_after=timedelta(milliseconds=20), hedge_budget=0.0)
    async with scene(settings, a=silent.behave, b=silent.behave, c=silent.behave) as s:
        asking = [asyncio.create_task(s.ask(timeout_s=1.0)) for _ in range(10)]
        await asyncio.sleep(0.5)
        assert silent.open <= 10 + 2
        await asyncio.gather(*asking, return_exceptions=True)
        assert s.at_rest()


async def test_an_alias_shares_its_requests_between_models_by_weight() -> None:
    asked: list[str] = []

    async def notes(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        asked.append(request.model)
        yield FINISHED

    settings = RouterSettings(canaries={"chat": {"m": 75, "new": 25}})
    async with scene(settings, models=("m", "new"), a=notes) as s:
        for _ in range(200):
            await s.ask(model="chat")
    assert 25 < asked.count("new") < 80


async def test_a_model_that_nobody_can_serve_falls_back_to_the_next() -> None:
    settings = RouterSettings(fallbacks={"big": ("m",)})
    async with scene(settings, a=answers) as s:
        assert (await s.ask(model="big", timeout_s=10.0))[-1] == FINISHED


def says(logprob: float, name: str) -> Behaviour:
    """Three tokens of this log-probability each; the text names the model."""

    async def behave(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield STARTED
        for at in range(3):
            made = generation_pb2.Delta(text=request.model, offset=at, token_count=1)
            if request.sampling.HasField("logprobs"):
                made.logprobs.add(logprob=logprob if request.model == name else 0.0)
            yield generation_pb2.GenerateResponse(delta=made)
        yield FINISHED

    return behave


@pytest.mark.parametrize(("logprob", "answered"), [(-0.2, "small"), (-3.0, "m")])
async def test_a_cascade_asks_the_teacher_when_the_student_is_not_confident(logprob: float, answered: str) -> None:
    settings = RouterSettings(cascades={"smart": CascadeSettings(student="small", teacher="m", tokens=2)})
    async with scene(settings, models=("m", "small"), a=says(logprob, "small")) as s:
        messages = await s.ask(model="smart")
        assert {message.delta.text for message in messages if message.HasField("delta")} == {answered}
        assert not any(message.delta.logprobs for message in messages)  # nobody asked for them
        assert [m.delta.offset for m in messages if m.HasField("delta")] == [0, 1, 2]
        asked = await s.ask(model="smart", sampling=generation_pb2.Sampling(logprobs=0))
        assert all(message.delta.logprobs for message in asked if message.HasField("delta"))


async def test_a_student_that_fails_or_has_no_room_leaves_the_answer_to_its_teacher() -> None:
    async def fails_small(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        if request.model == "small":
            await context.abort_with_status(rpc_status.to_status(to_status(InvalidRequest("too long"))))
        async for message in answers(request, context):
            yield message

    settings = RouterSettings(cascades={"smart": CascadeSettings(student="small", teacher="m")})
    async with scene(settings, models=("m", "small"), a=fails_small) as s:
        assert (await s.ask(model="smart"))[-4:] == [delta(0), delta(1), delta(2), FINISHED]


async def test_a_request_that_nobody_takes_in_time_is_turned_away_and_costs_no_worker() -> None:
    calls = 0

    async def full(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        nonlocal calls
        calls += 1
        yield STARTED

    async with scene(a=full) as s:
        s.hear(state=fleet_pb2.WORKER_STATE_DRAINING)
        within = generation_pb2.GenerateRequest(prompt="x")
        within.first_token_within.FromTimedelta(timedelta(milliseconds=100))
        with pytest.raises(Overloaded) as refused:
            await s.ask(first_token_within=within.first_token_within)
        assert refused.value.retry_after
        assert calls == 0
        assert s.router.binder.waiting == 0


async def test_past_the_bound_of_waiting_requests_the_caller_is_told_when_to_come_back() -> None:
    async with scene(RouterSettings(queue_limit=2), a=fails(EngineFailed("x"))) as s:
        s.hear(state=fleet_pb2.WORKER_STATE_DRAINING)
        waiting = [asyncio.create_task(s.ask()) for _ in range(2)]
        await until(lambda: s.router.binder.waiting == 2, 5, "two that wait")
        with pytest.raises(Overloaded) as refused:
            await s.ask()
        assert refused.value.retry_after
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert s.router.binder.waiting == 0
        assert s.at_rest()


async def test_a_request_that_would_queue_at_a_worker_is_taken_back_if_the_policy_says_so() -> None:
    calls = {"a": 0, "b": 0}

    def busy(name: str, queued: int) -> Behaviour:
        async def behave(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
            calls[name] += 1
            yield generation_pb2.GenerateResponse(
                started=generation_pb2.Started(worker_id=name, load=generation_pb2.Load(running=1, queued=queued))
            )
            if not queued:
                yield FINISHED
            else:
                await asyncio.sleep(30)

        return behave

    async with scene(RouterSettings(policy="round-robin"), a=busy("a", 3), b=busy("b", 0)) as s:
        s.router.binder.main_policy.keeps = lambda row, waiting: waiting == 0  # type: ignore[method-assign]
        for _ in range(4):
            messages = await s.ask()
            assert [m.started.worker_id for m in messages if m.HasField("started")] == ["b"]
        assert calls["a"] >= 2
        assert s.at_rest()
        assert all(not row.breaker.half_open for row in s.router.board.rows())


async def test_a_request_that_failed_at_an_idle_worker_does_not_hold_up_those_behind_it() -> None:
    release = asyncio.Event()
    calls = 0

    async def fails_once(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        nonlocal calls
        calls += 1
        if calls == 1:
            await context.abort_with_status(rpc_status.to_status(to_status(EngineFailed("x"))))
        yield FINISHED

    async def full(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield STARTED
        await release.wait()
        yield FINISHED

    async with scene(RouterSettings(policy="ladr"), a=fails_once, b=full) as s:
        for row in s.router.board.rows():  # one slot each
            row.slots = 1
            s.router.binder.main_policy.changed(row, s.router.binder._rng)
        a, b = (s.router.board.get(name) for name in "ab")
        assert a
        assert b
        while not b.in_flight:
            asyncio.create_task(s.ask(timeout_s=20.0)) if not a.in_flight else None  # ends with the scene
            await asyncio.sleep(0.02)
        answers = await asyncio.wait_for(asyncio.gather(*(s.ask() for _ in range(5))), 10)
        assert all(messages[-1] == FINISHED for messages in answers)
        release.set()


async def test_a_full_queue_does_not_end_an_answer_that_was_begun() -> None:
    async with scene(RouterSettings(queue_limit=0), a=worker(2), b=worker()) as s:
        for _ in range(4):
            s.hear()
            _, text = await assembled(s)
            assert text == WHOLE


async def test_a_client_that_reads_slowly_holds_no_place_at_its_worker() -> None:
    async with scene(a=worker()) as s:
        (row,) = s.router.board.rows()
        raw = generation_pb2.GenerateRequest(prompt="x").SerializeToString()
        async with aclosing(s.router.generate(raw, 20)) as messages:
            await anext(messages)
            await anext(messages)
            async with asyncio.timeout(5):
                while row.in_flight:
                    await asyncio.sleep(0.05)
                    s.router.tick(asyncio.get_running_loop().time())
            rest = [generation_pb2.GenerateResponse.FromString(message) async for message in messages]
        offsets = [message.delta.offset for message in rest if message.HasField("delta")]
        assert offsets == list(range(1, len(ANSWER)))
        assert rest[-1].HasField("finished")
        assert s.at_rest()


async def test_the_loser_of_a_hedge_gives_its_place_back_at_once() -> None:
    silent = Hanging()
    go_on = asyncio.Event()

    async def slow_end(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield STARTED
        yield delta(0)
        await go_on.wait()
        yield FINISHED

    settings = RouterSettings(hedge_after=timedelta(milliseconds=50), policy="round-robin")
    async with scene(settings, a=silent.behave, b=slow_end) as s:
        asking = asyncio.create_task(s.ask())
        rows = s.router.board.rows()
        await until(lambda: rows[1].in_flight == 1 and rows[0].in_flight == 0, 5, "the loser's place")
        await until(lambda: silent.open == 0, 5, "no call")
        go_on.set()
        assert (await asking)[-1] == FINISHED


async def test_a_worker_that_fails_without_saying_why_is_judged_and_another_is_asked() -> None:
    async def breaks(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield STARTED
        raise RuntimeError("broken")

    async with scene(a=breaks, b=answers) as s:
        for _ in range(10):
            s.hear()
            assert (await s.ask())[-1] == FINISHED


async def test_a_worker_without_room_for_the_answer_so_far_leaves_it_to_another() -> None:
    async def small(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        if request.HasField("continuation"):
            await context.abort_with_status(rpc_status.to_status(to_status(InvalidRequest("too long"))))
        async for message in worker(2)(request, context):
            yield message

    async with scene(a=small, b=small, c=worker()) as s:
        for _ in range(6):
            s.hear()
            _, text = await assembled(s)
            assert text == WHOLE


async def test_a_student_that_is_lost_before_it_is_judged_leaves_the_answer_to_its_teacher() -> None:
    async def dies_small(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        behave = fails(EngineFailed("x"), after=1) if request.model == "small" else answers
        async for message in behave(request, context):
            yield message

    settings = RouterSettings(cascades={"smart": CascadeSettings(student="small", teacher="m", tokens=8)})
    async with scene(settings, models=("m", "small"), a=dies_small) as s:
        assert (await s.ask(model="smart", timeout_s=20.0))[-4:] == [delta(0), delta(1), delta(2), FINISHED]


async def test_a_place_in_a_full_queue_goes_to_a_higher_class() -> None:
    async with scene(RouterSettings(queue_limit=2), a=answers) as s:
        s.hear(state=fleet_pb2.WORKER_STATE_DRAINING)
        batch = [asyncio.create_task(s.ask(priority=generation_pb2.PRIORITY_BATCH)) for _ in range(2)]
        await until(lambda: s.router.binder.waiting == 2, 5, "two that wait")
        urgent = asyncio.create_task(s.ask(priority=generation_pb2.PRIORITY_HIGH))
        done, _ = await asyncio.wait(batch, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        assert [type(task.exception()) for task in done] == [Overloaded]
        s.hear()
        assert (await urgent)[-1] == FINISHED
        await asyncio.gather(*batch, return_exceptions=True)
        assert s.at_rest()
