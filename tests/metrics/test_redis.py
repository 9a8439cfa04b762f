"""Several buses on one real Redis, and what happens to them when that is restarted, frozen, flushed or gone."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from pydantic import SecretStr

from ladr.config import ConfigError
from ladr.v1.fleet_pb2 import WORKER_STATE_STOPPED
from services.common.server import NOT_SERVING, SERVING
from services.metrics.app import STORE, App
from services.metrics.redis_backend import RedisBackend
from services.metrics.servicer import NAME
from tests.metrics.buses import health, publish, report, reporting, running, settings, until, watching
from tests.redis_server import RedisServer

HEALED_S = 1.0


async def test_instances_on_one_redis_see_one_fleet(redis: RedisServer) -> None:
    async with running(settings(redis)) as one, running(settings(redis)) as other:
        await until(lambda: not one.bus.degraded and not other.bus.degraded)
        async with watching(one.server.port) as at_one, watching(other.server.port) as at_other:
            await publish(one.server.port, report("a"))
            await publish(other.server.port, report("b"))
            assert await until(lambda: at_one.workers.keys() == at_other.workers.keys() == {"a", "b"}) < 0.3
            await publish(other.server.port, report("a", 2, state=WORKER_STATE_STOPPED))
            assert await until(lambda: at_one.workers.keys() == at_other.workers.keys() == {"b"}) < 0.3
            await until(lambda: not at_one.workers and not at_other.workers, 1.5)


async def test_an_instance_that_has_just_started_sees_the_fleet_and_how_old_it_is(redis: RedisServer) -> None:
    async with running(settings(redis)) as one:
        await until(lambda: not one.bus.degraded)
        heard_s = time.monotonic()
        await publish(one.server.port, report("a"), report("b"), report("b", 2, state=WORKER_STATE_STOPPED))
        await asyncio.sleep(0.3)
        async with running(settings(redis)) as other, watching(other.server.port) as watcher:
            await until(lambda: "a" in watcher.workers)
            age_s = watcher.workers["a"].age.ToNanoseconds() / 1e9
            assert 0.25 < age_s <= time.monotonic() - heard_s
            assert "b" not in watcher.workers
            await until(lambda: not watcher.workers)
            # A TTL after it was heard, or after this instance joined Redis: until then its silence may be Redis's.
            assert 0.95 < time.monotonic() - heard_s < 1.7


async def test_a_bus_that_is_restarted_shows_its_workers_within_a_report_interval(redis: RedisServer) -> None:
    own = settings(redis)
    async with running(own) as one:
        port = one.server.port
        async with reporting(port, "a", "b"):
            await until(lambda: len(one.bus.fleet) == 2)
    async with running(own.model_copy(update={"port": port})) as again, reporting(port, "a", "b"):
        assert await until(lambda: len(again.bus.fleet) == 2) < 0.3


async def test_redis_restarts_under_load_and_the_buses_heal_in_under_a_second(redis: RedisServer) -> None:
    names = [f"w{number}" for number in range(10)]
    async with (
        running(settings(redis)) as one,
        running(settings(redis)) as other,
        watching(one.server.port) as at_one,
        watching(other.server.port) as at_other,
        reporting(one.server.port, *names, interval_s=0.05) as reporters,
    ):
        await until(lambda: len(at_other.workers) == len(names))
        for _ in range(3):
            await asyncio.to_thread(redis.stop)
            await until(lambda: at_one.degraded and at_other.degraded)
            await asyncio.sleep(1.3)  # over a TTL: known through Redis alone, they stand while it is away
            assert len(at_one.workers) == len(at_other.workers) == len(names)
            await asyncio.to_thread(redis.start)
            took_s = await until(
                lambda: not at_one.degraded and not at_other.degraded and len(at_other.workers) == len(names)
            )
            assert took_s < HEALED_S
        assert max(reporter.slowest_ack_s for reporter in reporters) < 0.5
        assert not [gone for _, update in at_one.updates for gone in update.gone]


async def test_a_frozen_redis_slows_nothing_is_said_and_heals(redis: RedisServer) -> None:
    async with (
        running(settings(redis)) as one,
        running(settings(redis)) as other,
        watching(one.server.port) as at_one,
        watching(other.server.port) as at_other,
        reporting(one.server.port, "w", interval_s=0.02) as (reporter,),
    ):
        await until(lambda: at_other.sequence("w") > 0 and not at_one.degraded and not at_other.degraded)
        assert await health(one.server.port, STORE) == SERVING
        reporter.slowest_ack_s = 0.0
        redis.freeze()
        assert await until(lambda: at_one.degraded and at_other.degraded) < 1.0
        await asyncio.sleep(1.3)
        assert "w" in at_other.workers
        assert await health(one.server.port, STORE) == NOT_SERVING
        assert await health(one.server.port, NAME) == SERVING
        newest = reporter.sequence
        await until(lambda: at_one.sequence("w") > newest + 20)
        assert reporter.slowest_ack_s < 0.25
        redis.thaw()
        assert await until(lambda: not at_one.degraded and not at_other.degraded and "w" in at_other.workers) < HEALED_S
        assert await health(one.server.port, STORE) == SERVING


async def test_a_worker_that_dies_while_redis_is_frozen_is_no_ghost_after_it(redis: RedisServer) -> None:
    async with (
        running(settings(redis)) as one,
        running(settings(redis)) as other,
        watching(other.server.port) as watcher,
    ):
        async with reporting(one.server.port, "w", interval_s=0.02):
            await until(lambda: watcher.sequence("w") > 0)
            redis.freeze()
            await until(lambda: one.bus.degraded and other.bus.degraded)
        await until(lambda: len(one.bus.fleet) == 0)
        redis.thaw()
        await until(lambda: not one.bus.degraded and not other.bus.degraded)
        await until(lambda: not watcher.workers, 1.5)  # a TTL after Redis is back, whatever it still carried out
        seen = len(watcher.updates)
        await publish(one.server.port, report("x"))
        await until(lambda: "x" in watcher.workers)
        assert {entry.report.worker_id for _, update in watcher.updates[seen:] for entry in update.workers} == {"x"}


@pytest.mark.parametrize("newest_id", [None, "1-1"], ids=["flushed", "replaced by one whose ids are lower"])
async def test_a_redis_that_lost_everything_is_taken_as_it_is(redis: RedisServer, newest_id: str | None) -> None:
    async with (
        running(settings(redis)) as one,
        running(settings(redis)) as other,
        watching(other.server.port) as watcher,
        reporting(one.server.port, "w"),
    ):
        await until(lambda: watcher.sequence("w") > 0)
        with redis.client() as client:
            if newest_id:  # a stream that is far ahead, as if the clock of the former Redis had been
                client.xadd("ladr:reports", {"report": b""}, id="9999999999999-1")
                await asyncio.sleep(0.3)
            client.flushall()
            if newest_id:
                client.xadd("ladr:reports", {"report": b""}, id=newest_id)
        before = watcher.sequence("w")
        assert await until(lambda: watcher.sequence("w") > before + 2) < HEALED_S
        assert not one.bus.degraded and not other.bus.degraded
        assert not [gone for _, update in watcher.updates for gone in update.gone]


async def test_a_bus_starts_without_redis_and_joins_it_when_it_comes(redis: RedisServer) -> None:
    redis.stop()
    async with running(settings(redis)) as app, watching(app.server.port) as watcher:
        assert watcher.degraded
        async with reporting(app.server.port, "w"):
            assert await until(lambda: "w" in watcher.workers) < 0.3
            await asyncio.to_thread(redis.start)
            assert await until(lambda: not watcher.degraded) < HEALED_S


async def test_what_does_not_take_writes_is_degraded_without_flapping(redis: RedisServer) -> None:
    async with running(settings(redis)) as app, watching(app.server.port) as watcher, reporting(app.server.port, "w"):
        await until(lambda: not watcher.degraded)
        with redis.client() as client:
            client.config_set("maxmemory", "1mb")
            await until(lambda: watcher.degraded)
            seen = len(watcher.updates)
            await until(lambda: len(watcher.updates) > seen + 10)
            assert all(update.degraded for _, update in watcher.updates[seen:])
            client.config_set("maxmemory", "0")
        assert await until(lambda: not watcher.degraded) < HEALED_S


async def test_a_backend_that_is_cancelled_at_any_moment_ends(redis: RedisServer) -> None:
    rng = random.Random(1)
    for _ in range(20):
        backend = RedisBackend(settings(redis))
        run = asyncio.create_task(backend.run(lambda report, heard_s: None))
        cancel_s = time.monotonic() + rng.uniform(0.005, 0.05)
        while time.monotonic() < cancel_s:
            backend.send(report(), time.monotonic())
            await asyncio.sleep(0.0005)
        run.cancel()
        await asyncio.wait({run}, timeout=1.0)
        assert run.cancelled()


async def test_garbage_in_redis_is_passed_over(redis: RedisServer) -> None:
    with redis.client() as client:
        client.set("ladr:worker:junk", b"\xff\xff", px=5000)
        client.set("ladr:worker:forever", report("forever").SerializeToString())
        client.set("ladr:worker:bad", report("BAD").SerializeToString(), px=5000)
        async with running(settings(redis)) as app, watching(app.server.port) as watcher:
            await until(lambda: not watcher.degraded)
            now_ms = client.time()[0] * 1000
            client.xadd("ladr:reports", {"nothing": b"\xff"})
            client.xadd("ladr:reports", {"report": b"\xff\xff", "heard_ms": now_ms})
            client.xadd("ladr:reports", {"report": report("undated").SerializeToString()})
            client.xadd("ladr:reports", {"report": report("old").SerializeToString(), "heard_ms": now_ms - 1000})
            client.xadd("ladr:reports", {"report": report("good").SerializeToString(), "heard_ms": now_ms + 9000})
            await until(lambda: "good" in watcher.workers)
            assert set(watcher.workers) == {"good"}


async def test_the_stream_and_the_keys_are_bounded(redis: RedisServer) -> None:
    async with running(settings(redis, stream_length=100)) as app:
        await until(lambda: not app.bus.degraded)
        for begin in range(0, 1000, 250):
            await publish(app.server.port, *(report("w", number) for number in range(begin + 1, begin + 251)))
            await asyncio.sleep(0.03)
        with redis.client() as client:
            assert 0 < client.xlen("ladr:reports") < 300
            assert 0 < client.pttl("ladr:worker:w") <= 1000


async def test_a_wrong_password_is_degraded_and_never_in_the_log(
    redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    own, secret = settings(redis), redis.password
    redis.password = "another"
    redis.restart()
    async with running(own) as app, watching(app.server.port) as watcher:
        await publish(app.server.port, report("w"))
        await until(lambda: "w" in watcher.workers)
        assert watcher.degraded
    out, err = capsys.readouterr()
    assert secret not in out + err


def test_a_url_that_is_none_of_redis_is_one_line_without_it() -> None:
    own = settings().model_copy(update={"backend": "redis", "redis_url": SecretStr("http://:s3cret@host")})
    with pytest.raises(ConfigError) as error:
        App(own)
    assert "redis_url" in str(error.value)
    assert "s3cret" not in str(error.value)
