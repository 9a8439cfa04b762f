"""Reports between bus instances, through one Redis.

Each report goes to one stream, which all instances read from its end, and to a key of its worker's own that lives for a TTL,
from which an instance that has just connected learns who is there. When a report was heard is told on Redis's own clock, to
which each instance relates its monotonic one with every batch; no instance's wall clock counts. So a write that waited in a
frozen Redis is as old as it is, and no worker that died meanwhile comes back with it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import structlog
from google.protobuf.message import DecodeError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ladr.config import ConfigError, MetricsSettings
from ladr.errors import InvalidRequest
from ladr.v1.fleet_pb2 import WorkerReport
from services.metrics.backend import Hear
from services.metrics.report import check

log = structlog.get_logger()

_TIMEOUT_S = 0.5  # for Redis to connect or answer
_BLOCK_MS = 200  # how long it may wait for news before it answers that there are none
_BACKOFF_S = (0.05, 0.25)  # first and longest wait between two attempts to connect
_PAUSE_S = 0.01  # between two writes or two reads, so that reports go in batches
_BATCH = 256
_SCANS = 1000  # steps of 1000 keys, in looking for the workers' keys among what else Redis may hold


class RedisBackend:
    """Carries reports by Redis Streams. A writer and a reader, each with a connection that lives until its first error.

    Raises: ConfigError: the URL is not one of Redis.
    """

    def __init__(self, settings: MetricsSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = settings.redis_url
        self._stream = f"{settings.redis_prefix}:reports"
        self._probe = f"{settings.redis_prefix}:probe"
        self._presence = f"{settings.redis_prefix}:worker:"
        self._stream_length = settings.stream_length
        self._ttl_s = settings.ttl.total_seconds()
        self._ttl_ms = int(self._ttl_s * 1000)
        self._max_workers = settings.max_workers
        self._clock = clock
        self._outgoing: dict[str, tuple[WorkerReport, float]] = {}
        self._wake = asyncio.Event()
        self._well: set[str] = set()
        self._redis_ahead_ms = 0.0  # Redis's clock minus ours
        self._hear: Hear = lambda report, heard_s: None
        try:
            self._client()
        except ValueError:
            raise ConfigError(
                "metrics.redis_url (LADR_METRICS__REDIS_URL) is not a Redis URL; give redis://:password@host:6379/0"
            ) from None

    @property
    def degraded(self) -> bool:
        """True until both writer and reader are in step with Redis."""
        return len(self._well) < 2

    def send(self, report: WorkerReport, heard_s: float) -> None:
        """Leave a report for the writer, in the place of the worker's last one; the oldest yields to a worker too many."""
        self._outgoing.pop(report.worker_id, None)
        if len(self._outgoing) >= self._max_workers:
            del self._outgoing[next(iter(self._outgoing))]
        self._outgoing[report.worker_id] = (report, heard_s)
        self._wake.set()

    async def run(self, hear: Hear) -> None:
        """Write and read until cancelled, over whatever happens to Redis."""
        self._hear = hear
        tasks = [
            asyncio.create_task(self._keep("writer", self._write)),
            asyncio.create_task(self._keep("reader", self._read)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            # redis-py sends through asyncio.wait_for, which may swallow a cancellation before Python 3.12: ask again.
            while pending := [task for task in tasks if not task.done()]:
                for task in pending:
                    task.cancel()
                await asyncio.wait(pending, timeout=0.05)

    def _client(self) -> Redis:
        return Redis.from_url(
            self._url.get_secret_value(),
            protocol=2,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )

    async def _keep(self, name: str, session: Callable[[Redis], Awaitable[None]]) -> None:
        """Run sessions, each on a new client: one whose call failed or was cancelled is never used again."""
        first_s, longest_s = _BACKOFF_S
        wait_s = first_s
        for tries in itertools.count():
            try:
                async with aclosing(self._client()) as client:
                    await session(client)
            except Exception as error:  # whatever Redis or its client does, the bus goes on
                if name in self._well:
                    wait_s = first_s
                if name in self._well or not tries:
                    expected = isinstance(error, RedisError | OSError)
                    log.warning("redis_lost", side=name, error=type(error).__name__, exc_info=not expected)
                self._well.discard(name)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, longest_s)

    def _in_step(self, name: str) -> None:
        if name not in self._well:
            self._well.add(name)
            log.info("redis_found", side=name)

    async def _write(self, client: Redis) -> None:
        await client.set(self._probe, b"", px=1000)  # a replica or a full Redis answers PING, and takes nothing
        self._relate(await client.time())
        while True:
            self._wake.clear()
            while self._outgoing:
                await self._flush(client)
            self._in_step("writer")
            await asyncio.sleep(_PAUSE_S)
            await self._wake.wait()

    async def _flush(self, client: Redis) -> None:
        """Write one batch; on failure what is still newest is left for the next connection."""
        batch = dict(itertools.islice(self._outgoing.items(), _BATCH))
        for worker_id in batch:
            del self._outgoing[worker_id]
        now_s = self._clock()
        async with client.pipeline(transaction=False) as pipe:
            for worker_id, (report, heard_s) in batch.items():
                if now_s - heard_s < self._ttl_s:
                    heard_ms = int(heard_s * 1000 + self._redis_ahead_ms)
                    data = report.SerializeToString()
                    entry: dict[Any, Any] = {"report": data, "heard_ms": heard_ms}
                    pipe.xadd(self._stream, entry, maxlen=self._stream_length, approximate=True)
                    pipe.set(self._presence + worker_id, data, pxat=heard_ms + self._ttl_ms)
            pipe.time()
            try:
                *_, now = await pipe.execute()
            except BaseException:
                self._outgoing = {**batch, **self._outgoing}
                raise
        self._relate(now)

    def _relate(self, redis_now: tuple[int, int]) -> None:
        """Take what TIME answered just now (seconds, microseconds)."""
        self._redis_ahead_ms = _milliseconds(redis_now) - self._clock() * 1000

    async def _read(self, client: Redis) -> None:
        last = await self._join(client)
        self._in_step("reader")
        while True:
            asked_s = self._clock()
            async with client.pipeline(transaction=False) as pipe:
                pipe.xread({self._stream: last}, count=_BATCH, block=_BLOCK_MS)
                pipe.time()
                reply, now = await pipe.execute()
            if self._clock() - asked_s >= self._ttl_s:  # this process was frozen: how old is what waited, nobody knows
                last = await self._join(client)
            elif reply:
                entries = reply[0][1]
                for _, fields in entries:
                    age_ms = _milliseconds(now) - int(fields.get(b"heard_ms", 0))
                    self._take(fields.get(b"report", b""), age_ms / 1000)
                last = entries[-1][0]
                await asyncio.sleep(_PAUSE_S)
            elif _parts(await self._newest_id(client)) < _parts(last):  # flushed, or another Redis: its ids began anew
                last = await self._join(client)

    async def _join(self, client: Redis) -> bytes:
        """Hear who is there by the workers' keys; returns the id after which the stream has what comes later."""
        last = await self._newest_id(client)
        cursor, found = 0, 0
        for _ in range(_SCANS):
            cursor, keys = await client.scan(cursor, match=f"{self._presence}*", count=1000)
            if keys:
                async with client.pipeline(transaction=False) as pipe:
                    pipe.mget(keys)
                    for key in keys:
                        pipe.pttl(key)
                    reports, *left_ms = await pipe.execute()
                for data, left in zip(reports, left_ms, strict=True):
                    if data is not None and left > 0:
                        self._take(data, self._ttl_s - left / 1000)
            found += len(keys)
            if not cursor or found >= self._max_workers:
                break
        return last

    async def _newest_id(self, client: Redis) -> bytes:
        entries: Any = await client.xrevrange(self._stream, count=1)
        newest: bytes = entries[0][0] if entries else b"0-0"
        return newest

    def _take(self, data: bytes, age_s: float) -> None:
        """Hear a report of that age; what is no report, or too old, is passed over."""
        age_s = max(age_s, 0.0)
        try:
            report = WorkerReport.FromString(data)
            check(report)
        except (DecodeError, InvalidRequest):
            return
        if age_s < self._ttl_s:
            self._hear(report, self._clock() - age_s)


def _milliseconds(redis_now: tuple[int, int]) -> float:
    seconds, microseconds = redis_now
    return seconds * 1000 + microseconds / 1000


def _parts(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds), int(number)
