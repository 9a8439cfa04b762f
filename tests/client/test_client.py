"""The asyncio client against a real server."""

from __future__ import annotations

import asyncio
import gc
import time
from datetime import timedelta
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

import ladr
from ladr import errors

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def client(router: Any) -> Any:
    async with ladr.Client(router.address) as client:
        yield client


async def test_an_answer_comes_as_typed_events_in_order(client: Any, router: Any) -> None:
    stream = client.generate("Name two rivers.")
    assert (stream.started, stream.finished) == (None, None)
    events = [event async for event in stream]
    assert [type(event) for event in events] == [ladr.Started, ladr.Delta, ladr.Delta, ladr.Finished]
    assert stream.started.worker_id == "w1"
    assert stream.finished.usage.completion_tokens == 3
    assert router.cancelled == 0


async def test_text_gives_the_pieces_alone(client: Any) -> None:
    assert [piece async for piece in client.generate("x").text()] == ["Seine, ", "Rhine."]


async def test_complete_gives_the_whole_answer(client: Any) -> None:
    answer = await client.complete("x")
    assert (answer.text, answer.reason, answer.token_ids) == ("Seine, Rhine.", "stop", (0, 1, 2))
    assert (answer.worker_id, answer.model, answer.request_id, answer.attempts) == ("w1", "m", "r", 1)
    assert answer.usage.prompt_tokens == 5
    with pytest.raises(AttributeError):
        answer.text = "other"


async def test_every_option_reaches_the_server(client: Any, router: Any) -> None:
    await client.complete(
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        model="m",
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=3,
        stop="END",
        seed=1,
        logprobs=2,
        priority="batch",
        session_id="s",
        request_id="r",
    )
    await client.complete("plain", raw=True, max_tokens=None)
    chat, plain = router.requests
    assert [m.role for m in chat.messages] == ["system", "user"]
    assert chat.sampling.HasField("temperature")
    assert (chat.sampling.temperature, chat.sampling.max_tokens, list(chat.sampling.stop)) == (0, 7, ["END"])
    assert (chat.priority, chat.session_id, chat.request_id, chat.model) == (3, "s", "r", "m")
    assert plain.raw
    assert plain.prompt == "plain"
    assert not plain.sampling.HasField("max_tokens")


async def test_an_option_that_no_message_can_hold_names_its_field(client: Any) -> None:
    for options, field in [
        ({"max_tokens": -1}, "sampling.max_tokens"),
        ({"temperature": "hot"}, "sampling.temperature"),
        ({"stop": [1]}, "sampling.stop"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"priority": "now"}, "priority"),
    ]:
        with pytest.raises(errors.InvalidRequest) as caught:
            client.generate("x", **options)
        assert caught.value.field == field
    with pytest.raises(TypeError, match="no such option: temprature"):
        client.generate("x", temprature=1)


async def test_leaving_the_loop_cancels_the_call_though_the_stream_is_still_held(client: Any, router: Any) -> None:
    router.hang = True
    stream = client.generate("x")
    async for event in stream:
        if isinstance(event, ladr.Delta):
            break
    await router.until("cancelled", 1)
    assert router.open == 0
    with pytest.raises(errors.Cancelled):
        await anext(stream)


async def test_leaving_the_loop_over_the_text_cancels_the_call(client: Any, router: Any) -> None:
    router.hang = True
    stream = client.generate("x")
    async for _ in stream.text():
        break
    await router.until("cancelled", 1)


async def test_an_exception_in_the_loop_cancels_the_call(client: Any, router: Any) -> None:
    router.hang = True
    with pytest.raises(ZeroDivisionError):
        async for _ in client.generate("x"):
            raise ZeroDivisionError
    await router.until("cancelled", 1)


async def test_dropping_a_stream_cancels_the_call(client: Any, router: Any) -> None:
    router.hang = True
    stream = client.generate("x")
    await router.until("open", 1)
    del stream
    await router.until("cancelled", 1)


async def test_a_stream_in_a_reference_cycle_is_cancelled_by_the_collector(client: Any, router: Any) -> None:
    router.hang = True
    holder: dict[str, Any] = {"stream": client.generate("x")}
    holder["self"] = holder
    await router.until("open", 1)
    del holder
    gc.collect()
    await router.until("cancelled", 1)


async def test_a_stream_dropped_by_another_thread_is_cancelled(client: Any, router: Any) -> None:
    router.hang = True
    holder = [client.generate("x")]
    await router.until("open", 1)
    await asyncio.to_thread(holder.clear)
    await router.until("cancelled", 1)


async def test_leaving_async_with_cancels_the_call(client: Any, router: Any) -> None:
    router.hang = True
    async with client.generate("x") as stream:
        assert (await anext(stream)).worker_id == "w1"
    await router.until("cancelled", 1)


async def test_a_cancelled_task_cancels_the_call_and_stays_cancelled(client: Any, router: Any) -> None:
    router.hang = True
    task = asyncio.create_task(client.complete("x"))
    await router.until("open", 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await router.until("cancelled", 1)


async def test_cancelling_a_stream_from_another_task_is_a_typed_error_for_its_reader(client: Any, router: Any) -> None:
    router.hang = True
    stream = client.generate("x")
    reader = asyncio.create_task(stream.answer())
    await router.until("open", 1)
    stream.cancel()
    with pytest.raises(errors.Cancelled):
        await reader
    await router.until("cancelled", 1)


async def test_closing_the_client_ends_its_streams(router: Any) -> None:
    router.hang = True
    client = ladr.Client(router.address)
    reader = asyncio.create_task(client.complete("x"))
    await router.until("open", 1)
    await client.close()
    with pytest.raises(errors.Cancelled):
        await reader
    await router.until("open", 0)
    with pytest.raises(RuntimeError, match="closed"):
        client.generate("x")


async def test_a_hundred_streams_left_at_any_moment_leave_none_open(client: Any, router: Any) -> None:
    router.hang = True

    async def leave(after: int) -> None:
        left = after
        async for _ in client.generate("x"):
            left -= 1
            if left <= 0:
                break

    await asyncio.gather(*(leave(n % 3 + 1) for n in range(100)))
    await router.until("cancelled", 100)
    assert router.open == 0


async def test_the_timeout_is_the_deadline_of_the_call(client: Any, router: Any) -> None:
    router.hang = True
    began = time.monotonic()
    with pytest.raises(errors.DeadlineExceeded, match=router.address):
        await client.complete("x", timeout=0.2)
    assert time.monotonic() - began < 1.5
    assert 0 < router.time_left[0] < 0.25  # grpc rounds up
    await router.until("open", 0)


@pytest.mark.parametrize(
    "error",
    [
        errors.NoWorker("no worker serves it now", retry_after=timedelta(seconds=1.5)),
        errors.NotFound("no such model", resource=("model", "chat")),
        errors.InvalidRequest("at most 2", field="sampling.temperature"),
        errors.PromptTooLong("too long", field="prompt", metadata={"limit": "2048"}),
        errors.WorkerLost("lost after token 2"),
        errors.Unreachable("the worker does not answer"),
    ],
    ids=lambda error: error.reason,
)
async def test_the_servers_errors_arrive_with_their_details(client: Any, router: Any, error: errors.LadrError) -> None:
    router.script, router.error = router.script[:2], error
    events = []
    with pytest.raises(type(error)) as caught:
        async for event in client.generate("x"):
            events.append(event)
    assert type(caught.value) is type(error)
    assert vars(caught.value) == vars(error)
    assert len(events) == 2


async def test_a_router_that_goes_away_amid_an_answer_has_cut_it(client: Any, router: Any) -> None:
    router.hang = True
    stream = client.generate("x")
    assert (await anext(stream)).worker_id == "w1"
    await router.stop(0)
    with pytest.raises(errors.Unreachable, match="went away; the answer is cut"):
        await stream.answer()


async def test_where_nobody_listens_the_error_names_the_address(dead_address: str) -> None:
    async with ladr.Client(dead_address) as client:
        with pytest.raises(errors.Unreachable, match=dead_address):
            await client.complete("x")
        with pytest.raises(errors.Unreachable, match=dead_address):
            await client.list_workers()


async def test_a_message_over_the_bound_is_message_too_large(router: Any, say: Any) -> None:
    router.script = [say.started(), say.delta("x" * 10_000, 0), say.finished(1)]
    async with ladr.Client(router.address, max_message_bytes=5_000) as client:
        with pytest.raises(errors.MessageTooLarge):
            await client.complete("x")
        with pytest.raises(errors.MessageTooLarge):
            await client.complete("x" * 10_000)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (slice(0, 2), "came twice"),
        (slice(1, 3), "were lost"),
    ],
)
async def test_lost_or_repeated_tokens_are_never_silent(
    client: Any, router: Any, say: Any, cut: slice, message: str
) -> None:
    deltas = [say.delta("a", 0), say.delta("b", 1), say.delta("c", 2)]
    deltas = [*deltas[cut], *deltas[cut]] if message == "came twice" else deltas[cut]
    router.script, router.hang = [say.started(), *deltas], True
    with pytest.raises(errors.BrokenStream, match=message):
        await client.complete("x")
    await router.until("cancelled", 1)


async def test_a_second_attempt_goes_on_where_the_first_ended(client: Any, router: Any, say: Any) -> None:
    router.script = [
        say.started(),
        say.delta("a", 0),
        say.started(attempt=2, worker="w2"),
        say.delta("b", 1),
        say.finished(2),
    ]
    answer = await client.complete("x")
    assert (answer.text, answer.attempts, answer.worker_id) == ("ab", 2, "w2")


async def test_a_stream_without_an_end_is_broken(client: Any, router: Any) -> None:
    router.script = router.script[:-1]
    with pytest.raises(errors.BrokenStream, match="without `finished`"):
        await client.complete("x")


async def test_an_event_after_the_end_is_broken(client: Any, router: Any) -> None:
    router.script = [*router.script, router.script[-1]]
    with pytest.raises(errors.BrokenStream, match="after the answer had finished"):
        await client.complete("x")


async def test_workers_come_from_all_pages(client: Any) -> None:
    assert [info.report.worker_id for info in await client.list_workers()] == ["w0", "w1", "w2"]


async def test_a_worker_is_got_drained_and_taken_back(client: Any, router: Any) -> None:
    assert (await client.get_worker("w0")).eligible
    assert not (await client.drain_worker("w1")).eligible
    assert (await client.drain_worker("w1", undo=True)).eligible
    router.error = errors.NotFound("no such worker", resource=("worker", "w9"))
    with pytest.raises(errors.NotFound):
        await client.get_worker("w9")


async def test_watching_routes_ends_when_the_loop_is_left(client: Any, router: Any) -> None:
    tables = client.watch_routes("m")
    async for table in tables:
        if table.version == 3:
            break
    assert table.policy == "m"
    await router.until("cancelled", 1)


async def test_wait_ready_waits_for_serving(client: Any, router: Any) -> None:
    await router.health.set("ladr.v1.Router", NOT_SERVING)
    waiting = asyncio.create_task(client.wait_ready(5))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await router.health.set("ladr.v1.Router", SERVING)
    await waiting


async def test_wait_ready_tells_not_ready_from_not_there(client: Any, router: Any, dead_address: str) -> None:
    await router.health.set("ladr.v1.Router", NOT_SERVING)
    with pytest.raises(errors.DeadlineExceeded, match="answers"):
        await client.wait_ready(0.3)
    async with ladr.Client(dead_address) as nobody:
        with pytest.raises(errors.Unreachable, match=dead_address):
            await nobody.wait_ready(0.3)
