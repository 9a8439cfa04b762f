"""What a bus promises, over each backend: a real server, real clients."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import grpc
import httpx
import pytest

from ladr.config import MetricsSettings
from ladr.errors import InvalidRequest, LadrError, Overloaded
from ladr.status import from_rpc
from ladr.v1.fleet_pb2 import WORKER_STATE_STOPPED, ModelStatus
from ladr.v1.metrics_pb2 import SubscribeRequest
from ladr.v1.metrics_pb2_grpc import MetricsBusStub
from services.common.server import SERVING
from services.metrics.servicer import NAME
from tests.metrics.buses import (
    connected,
    health,
    publish,
    report,
    reporting,
    running,
    samples,
    settings,
    until,
    watching,
)

Own = Callable[..., MetricsSettings]


@pytest.fixture(params=["memory", "redis"])
def own(request: pytest.FixtureRequest) -> Own:
    """Settings over one backend after the other."""
    redis = request.getfixturevalue("redis") if request.param == "redis" else None
    return lambda **fields: settings(redis, **fields)


async def refused(call: object) -> LadrError:
    """The error that a call ends with."""
    try:
        while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc(error.code(), error.details() or "", error.trailing_metadata())
    raise AssertionError("the call ended well")


async def test_a_report_reaches_a_subscriber_with_its_age_and_within_100_ms(own: Own) -> None:
    async with running(own()) as app, watching(app.server.port) as watcher:
        assert await publish(app.server.port, report("w", 7)) == [7]
        assert await until(lambda: watcher.sequence("w") == 7) < 0.1
        assert watcher.workers["w"].age.ToNanoseconds() < 100e6
        assert watcher.workers["w"].report == report("w", 7)


async def test_a_snapshot_comes_first_and_holds_all_workers_and_nobody_gone(own: Own) -> None:
    async with running(own()) as app:
        stopped = report("c", 2, state=WORKER_STATE_STOPPED)
        await publish(app.server.port, report("a"), report("b"), report("c"), stopped)
        async with watching(app.server.port) as watcher:
            first = watcher.updates[0][1]
            assert {entry.report.worker_id for entry in first.workers} == {"a", "b"}
            assert not first.gone


async def test_every_report_is_acknowledged_also_one_that_is_not_newer(own: Own) -> None:
    async with running(own()) as app, watching(app.server.port) as watcher:
        assert await publish(app.server.port, report("w", 5), report("w", 5), report("w", 3)) == [5, 5, 3]
        await until(lambda: watcher.sequence("w") == 5)


async def test_a_newer_incarnation_replaces_an_older(own: Own) -> None:
    async with running(own()) as app, watching(app.server.port) as watcher:
        await publish(app.server.port, report("w", 9, "0198a"), report("w", 1, "0198b"), report("w", 10, "0198a"))
        await until(lambda: watcher.sequence("w") == 1)
        assert watcher.workers["w"].report.incarnation == "0198b"


async def test_a_broken_stream_alone_takes_no_worker_and_silence_does_after_the_ttl(own: Own) -> None:
    async with running(own(ttl="400ms")) as app, watching(app.server.port) as watcher:
        heard_s = time.monotonic()
        await publish(app.server.port, report("w"))
        await until(lambda: watcher.sequence("w") == 1)
        await until(lambda: not watcher.workers)
        assert 0.4 <= time.monotonic() - heard_s < 0.6
        gone = [one for _, update in watcher.updates for one in update.gone]
        assert [(one.worker_id, one.incarnation) for one in gone] == [("w", "0")]


async def test_goodbye_takes_a_worker_at_once(own: Own) -> None:
    async with running(own()) as app, watching(app.server.port) as watcher:
        await publish(app.server.port, report("w"))
        await until(lambda: watcher.sequence("w") == 1)
        await publish(app.server.port, report("w", 2, state=WORKER_STATE_STOPPED))
        assert await until(lambda: not watcher.workers) < 0.2


async def test_a_quiet_bus_says_every_200_ms_that_it_is_alive(own: Own) -> None:
    async with running(own()) as app, watching(app.server.port) as watcher:
        await until(lambda: len(watcher.updates) > 4)
        times = [time_s for time_s, _ in watcher.updates[1:]]
        assert max(b - a for a, b in itertools.pairwise(times)) < 0.2
        assert not any(update.workers or update.gone for _, update in watcher.updates)


async def test_changes_come_together_in_at_most_one_update_an_interval(own: Own) -> None:
    names = [f"w{number}" for number in range(10)]
    async with running(own()) as app, watching(app.server.port) as watcher:
        began_s, before = time.monotonic(), len(watcher.updates)
        async with reporting(app.server.port, *names, interval_s=0.01) as reporters:
            await until(lambda: all(reporter.sequence > 50 for reporter in reporters), 20)
        took_s = time.monotonic() - began_s
        assert len(watcher.updates) - before <= took_s / 0.05 + 2
        await until(lambda: all(watcher.sequence(name) > 50 for name in names))


async def test_a_bad_report_ends_its_stream_with_the_field(own: Own) -> None:
    async with running(own()) as app, connected(app.server.port) as stub:
        for bad, field in [
            (report("Not-A-Name"), "worker_id"),
            (report(incarnation=""), "incarnation"),
            (report(address="nowhere"), "address"),
            (report(slots=0), "slots"),
            (report(models=[ModelStatus()] * 65), "models"),
        ]:
            error = await refused(stub.Publish(iter([bad])))
            assert isinstance(error, InvalidRequest)
            assert error.field == field
        assert len(app.bus.fleet) == 0


async def test_a_worker_too_many_is_refused_and_told_when_to_retry(own: Own) -> None:
    async with running(own(max_workers=2)) as app, connected(app.server.port) as stub:
        await publish(app.server.port, report("a"), report("b"))
        error = await refused(stub.Publish(iter([report("c")])))
        assert isinstance(error, Overloaded)
        assert error.retry_after
        await publish(app.server.port, report("a", 2))


async def test_a_subscriber_too_many_is_refused_and_the_place_of_one_that_left_is_free(own: Own) -> None:
    async with running(own(max_subscribers=1)) as app, connected(app.server.port) as stub:
        async with watching(app.server.port):
            error = await refused(stub.Subscribe(SubscribeRequest()))
            assert isinstance(error, Overloaded)
            assert error.retry_after
        await until(lambda: app.servicer.subscribers == 0)
        async with watching(app.server.port) as watcher:
            assert watcher.updates


async def test_a_subscriber_that_does_not_read_costs_nothing_and_then_gets_the_newest(own: Own) -> None:
    names = [f"w{number}" for number in range(40)]
    bulk = [ModelStatus(name="m" * 128) for _ in range(64)]  # the sockets between, some 10 MB, are soon full
    async with (
        running(own(update_interval="10ms")) as app,
        connected(app.server.port) as stub,
        connected(app.server.port) as slow_stub,
        watching(app.server.port) as fast,
    ):
        slow = slow_stub.Subscribe(SubscribeRequest())
        await slow.read()
        call = stub.Publish()
        last = 0
        while fast.bytes < 30e6:
            last += 1
            for name in names:
                await call.write(report(name, last, models=bulk))
                await call.read()
            await until(lambda last=last: fast.sequence(names[-1]) == last)  # type: ignore[misc]
        call.cancel()
        newest: dict[str, int] = {}
        slow_bytes = 0
        while set(newest.values()) != {last} or len(newest) < len(names):
            update = await slow.read()
            slow_bytes += update.ByteSize()
            newest |= {entry.report.worker_id: entry.report.sequence for entry in update.workers}
        slow.cancel()
        assert slow_bytes < 20e6, "what it missed was kept for it"


async def test_health_and_metrics_tell_of_the_bus(own: Own) -> None:
    async with running(own()) as app, watching(app.server.port):
        await publish(app.server.port, report("a"), report("b"), report("b", 2))
        assert await health(app.server.port, NAME) == SERVING
        await until(lambda: not app.bus.degraded)
        async with httpx.AsyncClient() as http:
            page = await http.get(f"http://127.0.0.1:{app.server.http_port}/metrics")
        seen = dict(samples(page.text))
        assert seen["ladr_bus_workers"] == 2
        assert seen["ladr_bus_subscribers"] == 1
        assert seen["ladr_bus_reports_total"] == 3
        assert seen["ladr_bus_degraded"] == 0
        assert 'worker="' not in page.text


async def test_stopping_ends_all_streams_at_once_with_draining(own: Own) -> None:
    async with asyncio.timeout(10):
        async with running(own()) as app, connected(app.server.port) as stub:
            idle = stub.Publish()
            await idle.write(report())
            await idle.read()
            watch = stub.Subscribe(SubscribeRequest())
            await watch.read()
            ends = [asyncio.create_task(refused(call)) for call in (idle, watch)]
            stopped_s = time.monotonic()
            app.servicer.drain()
            errors = await asyncio.gather(*ends)
            assert time.monotonic() - stopped_s < 0.2
            assert [error.reason for error in errors] == ["DRAINING", "DRAINING"]
            assert (await refused(stub.Subscribe(SubscribeRequest()))).reason == "DRAINING"
            stopped_s = time.monotonic()
        assert time.monotonic() - stopped_s < 1.0


async def test_a_subscriber_that_does_not_read_does_not_hold_up_the_stop(own: Own) -> None:
    bulk = [ModelStatus(name="m" * 120) for _ in range(64)]
    async with running(own()) as app:
        await publish(app.server.port, *(report(f"w{number}", models=bulk) for number in range(200)))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{app.server.port}")
        stuck = MetricsBusStub(channel).Subscribe(SubscribeRequest())
        await until(lambda: app.servicer.subscribers == 1)
        stopped_s = time.monotonic()
    assert time.monotonic() - stopped_s < 3.0
    stuck.cancel()
    await channel.close()
