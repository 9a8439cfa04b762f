"""The client without asyncio against a real server, which has the event loop to itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

import ladr
from ladr import errors


@pytest.fixture
async def client(router: Any) -> Any:
    client = await asyncio.to_thread(ladr.SyncClient, router.address)
    yield client
    await asyncio.to_thread(client.close)


async def test_an_answer_comes_as_events_as_text_and_whole(client: Any) -> None:
    def ask() -> tuple[list[type], list[str], ladr.Answer]:
        return (
            [type(event) for event in client.generate("x")],
            list(client.generate("x").text()),
            client.complete(messages=[{"role": "user", "content": "x"}]),
        )

    events, pieces, answer = await asyncio.to_thread(ask)
    assert events == [ladr.Started, ladr.Delta, ladr.Delta, ladr.Finished]
    assert pieces == ["Seine, ", "Rhine."]
    assert (answer.text, answer.reason) == ("Seine, Rhine.", "stop")


def _break(client: Any, kept: list[Any]) -> None:
    kept.append(client.generate("x"))
    for event in kept[0]:
        if isinstance(event, ladr.Delta):
            break


def _break_text(client: Any, kept: list[Any]) -> None:
    kept.append(client.generate("x"))
    for _ in kept[0].text():
        break


def _raise(client: Any, _: list[Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        for _event in client.generate("x"):
            raise ZeroDivisionError


def _drop(client: Any, _: list[Any]) -> None:
    stream = client.generate("x")
    next(stream)
    del stream


def _leave_with(client: Any, kept: list[Any]) -> None:
    with client.generate("x") as stream:
        kept.append(stream)
        next(stream)


def _cancel_from_another_thread(client: Any, kept: list[Any]) -> None:
    stream = client.generate("x")
    threading.Timer(0.1, stream.cancel).start()
    with pytest.raises(errors.Cancelled):
        stream.answer()


@pytest.mark.parametrize("leave", [_break, _break_text, _raise, _drop, _leave_with, _cancel_from_another_thread])
async def test_leaving_a_stream_cancels_the_call(
    client: Any, router: Any, leave: Callable[[Any, list[Any]], None]
) -> None:
    router.hang = True
    kept: list[Any] = []
    await asyncio.to_thread(leave, client, kept)
    await router.until("cancelled", 1)
    assert router.open == 0


async def test_closing_the_client_ends_its_streams(router: Any) -> None:
    router.hang = True
    client = ladr.SyncClient(router.address)
    reader = asyncio.create_task(asyncio.to_thread(client.complete, "x"))
    await router.until("open", 1)
    await asyncio.to_thread(client.close)
    with pytest.raises(errors.Cancelled):
        await reader
    await router.until("open", 0)
    with pytest.raises(RuntimeError, match="closed"):
        client.generate("x")


async def test_failures_are_typed(client: Any, router: Any, say: Any, dead_address: str) -> None:
    router.hang = True
    with pytest.raises(errors.DeadlineExceeded):
        await asyncio.to_thread(client.complete, "x", timeout=0.2)
    router.hang, router.error = False, errors.NotFound("no such model", resource=("model", "chat"))
    with pytest.raises(errors.NotFound) as caught:
        await asyncio.to_thread(client.complete, "x")
    assert caught.value.resource == ("model", "chat")
    router.error, router.script = None, [say.started(), say.delta("b", 1)]
    with pytest.raises(errors.BrokenStream, match="were lost"):
        await asyncio.to_thread(client.complete, "x")
    with ladr.SyncClient(dead_address) as nobody, pytest.raises(errors.Unreachable, match=dead_address):
        await asyncio.to_thread(nobody.complete, "x")


async def test_workers_and_routes(client: Any, router: Any) -> None:
    assert len(await asyncio.to_thread(client.list_workers)) == 3
    assert (await asyncio.to_thread(client.get_worker, "w0")).eligible
    assert (await asyncio.to_thread(client.drain_worker, "w0", True)).eligible

    def third() -> int:
        for table in client.watch_routes():
            if table.version == 3:
                return int(table.version)
        return 0

    assert await asyncio.to_thread(third) == 3
    await router.until("cancelled", 1)


async def test_wait_ready(client: Any, router: Any) -> None:
    await router.health.set("ladr.v1.Router", health_pb2.HealthCheckResponse.NOT_SERVING)
    with pytest.raises(errors.DeadlineExceeded, match="answers"):
        await asyncio.to_thread(client.wait_ready, 0.3)
    await router.health.set("ladr.v1.Router", health_pb2.HealthCheckResponse.SERVING)
    await asyncio.to_thread(client.wait_ready, 5)


async def test_a_router_that_goes_away_amid_an_answer_has_cut_it(client: Any, router: Any) -> None:
    router.hang = True
    stream = client.generate("x")
    await asyncio.to_thread(next, stream)
    await router.stop(0)
    with pytest.raises(errors.Unreachable, match="went away; the answer is cut"):
        await asyncio.to_thread(stream.answer)
