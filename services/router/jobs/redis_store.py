"""Jobs in one Redis, for any number of routers on any number of machines.

Queued jobs have an entry in a stream, one stream a priority, which a consumer group hands out; a lease is the time for which an
entry has been idle there, on Redis's own clock. The request lies in the job's hash, so that no trimming of a stream loses it.
What may be missing after a failover, a FLUSH or a deleted group is made again from the hashes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from hashlib import sha1
from typing import Any, TypeVar

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError

from ladr.errors import LadrError
from services.router.jobs import redis_scripts
from services.router.jobs.machine import (
    LIVE,
    STATES,
    Claim,
    Event,
    Job,
    Limits,
    Refused,
    Stale,
    State,
    Succeed,
    Tick,
    step,
)
from services.router.jobs.store import (
    Census,
    Draft,
    Kept,
    Page,
    Taken,
    dump,
    full,
    load,
    same,
    too_many,
    unavailable,
)

log = structlog.get_logger()
T = TypeVar("T")

GROUP = "routers"
PRIORITIES = (1, 2, 3)  # as in ladr.v1.Priority, urgent first
_TIMEOUT_S = 2.0  # for Redis to connect or answer
_CONNECTIONS = 16
_TRIES = 32  # of a step whose job others change at the same time
_PLACED: frozenset[State] = frozenset({"queued", "running"})  # those with an entry in a queue
_TIDY_S = 60.0
_TIDY_IDLE_MS = 600_000
_MEND = 200  # queued jobs looked at each time


class RedisStore:
    """A `Store`. Every call that was begun is carried out to its end, so that no connection is left in the middle of an answer.

    Args:
        prefix: first part of each key, in braces.
        lease_ms: an attempt whose entry is idle for longer is lost. max_live: most jobs that have not ended, about.
        make_nonce: a random word for a fencing token.
    Raises: ValueError: the URL is not one of Redis.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        limits: Limits,
        lease_ms: int,
        max_live: int,
        make_nonce: Callable[[], str],
    ) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=_TIMEOUT_S,
            protocol=2,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis = Redis.from_pool(pool)
        self._tag = f"{{{prefix}:jobs}}"
        self._limits = limits
        self._lease_ms = lease_ms
        self._max_live = max_live
        self._make_nonce = make_nonce
        self._consumer = make_nonce()
        self._cursors: dict[str, Any] = {}
        self._ahead_ms = 0.0  # Redis's clock minus ours
        self._tidied_s = float("-inf")
        self._mended = 0
        self._open: set[asyncio.Task[Any]] = set()

    def now_ms(self) -> int:
        return int(time.time() * 1000 + self._ahead_ms)

    async def open(self) -> None:
        await self._call(self._look_at_clock())

    async def close(self) -> None:
        while self._open:
            await asyncio.wait(self._open)
        await self._redis.aclose()

    async def submit(self, drafts: Sequence[Draft]) -> list[Kept | LadrError]:
        return await self._call(self._submit(drafts))

    async def get(self, job_id: str) -> Job | None:
        found = await self._call(self._read(job_id))
        return found[1] if found else None

    async def apply(self, job_id: str, event: Event) -> Job | None:
        return await self._call(self._apply(job_id, event))

    async def claim(self, count: int) -> list[Taken]:
        return await self._call(self._claim(count))

    async def reclaim(self, count: int) -> list[Taken]:
        return await self._call(self._reclaim(count))

    async def beat(self, job_id: str, token: str) -> bool:
        async def work() -> bool:
            found = await self._read(job_id)
            if not found or found[1].token != token:
                return False
            keys = [self._job(job_id), self._queue(found[1].priority)]
            arguments = [token, GROUP, self._consumer]
            return bool(await self._with_group(keys[1], lambda: self._script(redis_scripts.BEAT, keys, arguments)))

        return await self._call(work())

    async def append(self, job_id: str, token: str, index: int, chunk: bytes) -> None:
        keys = [self._job(job_id), self._chunks(job_id)]
        if not await self._call(self._script(redis_scripts.APPEND, keys, [token, index, chunk])):
            raise Stale("the attempt does not count any more")

    async def look(self, job_id: str, index: int, count: int) -> tuple[Job, list[bytes]] | None:
        async def work() -> tuple[Job, list[bytes]] | None:
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hget(self._job(job_id), "job")
                pipe.lrange(self._chunks(job_id), index, index + count - 1)
                record, chunks = await pipe.execute()
            return (load(record), chunks) if record else None

        return await self._call(work())

    async def result(self, job_id: str) -> bytes:
        found: Any = await self._call(_awaited(self._redis.hget(self._job(job_id), "result")))
        return found or b""

    async def page(self, state: State | None, after: int, count: int) -> Page:
        async def work() -> Page:
            index = self._index(state) if state else self._all()
            rows: Any = await self._redis.zrange(
                index, f"({after}", "+inf", byscore=True, offset=0, num=count, withscores=True
            )
            async with self._redis.pipeline(transaction=False) as pipe:
                for name, _ in rows:
                    pipe.hget(self._job(name.decode()), "job")
                records = await pipe.execute()
            return Page([load(record) for record in records if record], int(rows[-1][1]) if len(rows) == count else 0)

        return await self._call(work())

    async def delete(self, job_id: str) -> bool:
        async def work() -> bool:
            for _ in range(_TRIES):
                found = await self._read(job_id)
                if not found:
                    return False
                if found[1].live:
                    raise Refused(f"it is {found[1].state}: cancel it first")
                if await self._forget(found[0], found[1]):
                    return True
            raise unavailable()

        return await self._call(work())

    async def sweep(self, count: int) -> int:
        return await self._call(self._sweep(count))

    async def census(self) -> Census:
        async def work() -> Census:
            async with self._redis.pipeline(transaction=False) as pipe:
                for state in STATES:
                    pipe.zcard(self._index(state))
                pipe.zrange(self._index("queued"), 0, 0)
                *counts, first = await pipe.execute()
            oldest = await self._read(first[0].decode()) if first else None
            return Census(dict(zip(STATES, counts, strict=True)), oldest[1].created_ms if oldest else 0)

        return await self._call(work())

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry it out to its end also if the caller is cancelled (redis-py may lose cancellations before Python 3.12)."""
        task = asyncio.create_task(work)
        self._open.add(task)
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except (RedisError, OSError) as error:
            raise _meant(error) from error

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._open.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have gone away

    async def _script(self, text: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script by its digest; one that Redis does not know (any more) is given to it again."""
        try:
            return await _awaited(self._redis.evalsha(_digest(text), len(keys), *keys, *arguments))
        except NoScriptError:
            return await _awaited(self._redis.eval(text, len(keys), *keys, *arguments))

    async def _with_group(self, queue: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask a queue; if it has lost its group, make one that begins with what is there."""
        try:
            return await ask()
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
        log.warning("jobs_group_made", queue=queue)
        try:
            await self._redis.xgroup_create(queue, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):  # another router was faster
                raise
        return await ask()

    async def _submit(self, drafts: Sequence[Draft]) -> list[Kept | LadrError]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for state in LIVE:
                pipe.zcard(self._index(state))
            room = self._max_live - sum(await pipe.execute())
        taken, refused = drafts[: max(room, 0)], drafts[max(room, 0) :]
        replies = await self._create(taken)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            await self._redis.script_load(redis_scripts.COMMIT)
            replies = await self._create(taken)  # those that are there by now are the same jobs
        kept: list[Kept | LadrError] = []
        for draft, reply in zip(taken, replies, strict=True):
            if isinstance(reply, Exception):
                kept.append(_meant(reply))
            elif reply[0] == 1:
                kept.append(Kept(draft.job, new=True))
            else:
                kept.append(await self._kept(draft) or unavailable())
        for draft in refused:  # also where there is no room a job that is there is told
            kept.append(await self._kept(draft) or too_many())
        return kept

    async def _create(self, drafts: Sequence[Draft]) -> list[Any]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for draft in drafts:
                keys, arguments = self._commit(None, "", draft.job, request=draft.request)
                pipe.evalsha(_digest(redis_scripts.COMMIT), len(keys), *keys, *arguments)
            return await pipe.execute(raise_on_error=False)

    async def _kept(self, draft: Draft) -> Kept | LadrError | None:
        found = await self._read(draft.job.id)
        return same(found[1], draft) if found else None

    async def _read(self, job_id: str) -> tuple[str, Job] | None:
        """Its rev and the job."""
        rev, record = await _awaited(self._redis.hmget(self._job(job_id), ["rev", "job"]))
        return (rev.decode(), load(record)) if record else None

    async def _apply(self, job_id: str, event: Event) -> Job | None:
        for _ in range(_TRIES):
            found = await self._read(job_id)
            if not found:
                return None
            rev, job = found
            after = step(job, event, self._limits, self.now_ms())
            if after is job:
                return job
            taken, _ = await self._script(redis_scripts.COMMIT, *self._commit(job, rev, after, event))
            if taken == 1:
                return after
            if taken == -1:
                raise Stale("pieces of the answer are missing in the store")
        raise unavailable()

    def _commit(
        self, before: Job | None, rev: str, after: Job, event: Event | None = None, request: bytes = b""
    ) -> tuple[list[str], list[Any]]:
        """Keys and arguments of COMMIT."""
        was, will = before is not None and before.state in _PLACED, after.state in _PLACED
        queue = "enter" if will and not was else "leave" if was and not will else "stay"
        if before and before.state == "running" and after.state == "queued":
            queue = "renew"
        done = event if isinstance(event, Succeed) else None
        keys = [
            self._job(after.id),
            self._chunks(after.id),
            self._queue(after.priority),
            self._timers(),
            self._all(),
            self._index(before.state if before else after.state),
            self._index(after.state),
            f"{self._tag}:seq",
        ]
        arguments = [
            after.id,
            rev,
            self._make_nonce(),
            dump(after),
            after.token if after.state == "running" else "",
            after.wake_ms(self._limits) or "",
            GROUP,
            queue,
            done.chunks if done else "",
            done.last if done else "",
            request,
            done.result if done else "",
            "clear" if isinstance(event, Claim) else "",
        ]
        return keys, arguments

    async def _claim(self, count: int) -> list[Taken]:
        async def given(queue: str, left: int) -> Any:
            reply: Any = await self._redis.xreadgroup(GROUP, self._consumer, {queue: ">"}, count=left)
            return reply[0][1] if reply else ()

        return await self._take_all(count, given, lost=False)

    async def _reclaim(self, count: int) -> list[Taken]:
        async def given(queue: str, left: int) -> Any:
            start = self._cursors.get(queue, b"0-0")
            self._cursors[queue], entries, *_ = await _awaited(
                self._redis.xautoclaim(queue, GROUP, self._consumer, max(self._lease_ms, 0), start, count=left)
            )
            return entries

        return await self._take_all(count, given, lost=True)

    async def _take_all(self, count: int, given: Callable[[str, int], Awaitable[Any]], lost: bool) -> list[Taken]:
        """Begin attempts at up to `count` jobs that `given` gives out, urgent queues first."""
        taken: list[Taken] = []
        try:
            for priority in PRIORITIES:
                queue, left = self._queue(priority), count - len(taken)
                if left <= 0:
                    break
                for entry, fields in await self._with_group(queue, lambda: given(queue, left)):  # noqa: B023  # called at once
                    if (one := await self._take(queue, entry, fields, lost)) is not None:
                        taken.append(one)
        except (RedisError, OSError):
            if not taken:
                raise
        return taken  # what was begun before a failure is run; what was given out and not begun comes back when its lease ends

    async def _take(self, queue: str, entry: bytes, fields: dict[bytes, bytes], lost: bool) -> Taken | None:
        """Begin an attempt at the job of an entry that this router was given."""
        job_id = (fields or {}).get(b"id", b"").decode(errors="replace")
        has, request = await _awaited(self._redis.hmget(self._job(job_id), ["entry", "request"]))
        if has != entry:
            await self._script(redis_scripts.DROP, [self._job(job_id), queue], [entry, GROUP])
            return None
        try:
            job = await self._apply(job_id, Claim(self._make_nonce(), lost))
        except (
            Refused
        ):  # it runs elsewhere, and the group was made anew meanwhile: its holder's next beat takes the entry back
            return None
        return Taken(job, request) if job and job.state == "running" else None

    async def _sweep(self, count: int) -> int:
        await self._look_at_clock()
        names: Any = await self._redis.zrange(self._timers(), "-inf", self.now_ms(), byscore=True, offset=0, num=count)
        for name in names:
            job = await self._apply(name.decode(), Tick())
            if job is None:
                await self._redis.zrem(self._timers(), name)
            elif job.forgotten(self._limits, self.now_ms()) and (found := await self._read(job.id)):
                await self._forget(*found)
        if time.monotonic() - self._tidied_s > _TIDY_S:
            await self._tidy()
            self._tidied_s = time.monotonic()
        return len(names)

    async def _forget(self, rev: str, job: Job) -> bool:
        keys = [self._job(job.id), self._chunks(job.id), self._timers(), self._all(), self._index(job.state)]
        return bool(await self._script(redis_scripts.FORGET, keys, [job.id, rev]))

    async def _tidy(self) -> None:
        """Take away consumers of routers that are gone, and give queued jobs without an entry a new one, some each time."""
        for priority in PRIORITIES:
            queue = self._queue(priority)
            await self._with_group(
                queue,
                lambda queue=queue: self._script(redis_scripts.TIDY, [queue], [GROUP, _TIDY_IDLE_MS]),  # type: ignore[misc]
            )
        for state in ("queued", "running"):
            await self._mend(state)

    async def _mend(self, state: State) -> None:
        rows: Any = await self._redis.zrange(
            self._index(state), f"({self._mended}", "+inf", byscore=True, offset=0, num=_MEND, withscores=True
        )
        for name, _ in rows:
            found = await self._read(name.decode())
            if found and await self._script(
                redis_scripts.MEND, [self._job(found[1].id), self._queue(found[1].priority)], [found[1].id]
            ):
                log.warning("job_requeued", job=found[1].id)
        if state == "queued":
            self._mended = int(rows[-1][1]) if len(rows) == _MEND else 0

    async def _look_at_clock(self) -> None:
        seconds, micros = await self._redis.time()
        self._ahead_ms = seconds * 1000 + micros / 1000 - time.time() * 1000

    def _job(self, job_id: str) -> str:
        return f"{self._tag}:job:{job_id}"

    def _chunks(self, job_id: str) -> str:
        return f"{self._tag}:chunks:{job_id}"

    def _queue(self, priority: int) -> str:
        return f"{self._tag}:queue:{priority}"

    def _index(self, state: State) -> str:
        return f"{self._tag}:{state}"

    def _all(self) -> str:
        return f"{self._tag}:all"

    def _timers(self) -> str:
        return f"{self._tag}:timers"


def _digest(script: str) -> str:
    return _DIGESTS[script]


_DIGESTS = {
    script: sha1(script.encode()).hexdigest()  # noqa: S324  # the name that Redis gives it
    for name, script in vars(redis_scripts).items()
    if name.isupper()
}


def _meant(error: Exception) -> LadrError:
    """What a failure of Redis is to a caller."""
    return full() if isinstance(error, OutOfMemoryError) else unavailable()


async def _awaited(reply: Any) -> Any:
    """redis-py types its replies as perhaps awaitable."""
    return await reply
