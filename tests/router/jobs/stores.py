"""Stores for tests: both kinds, as several routers see them, with crashes at will."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from ladr.errors import JobsUnavailable
from services.router.jobs.machine import Job, Limits
from services.router.jobs.redis_store import RedisStore
from services.router.jobs.sqlite_store import SqliteStore
from services.router.jobs.store import Draft, Kept, Store

LIMITS = Limits(attempts=3, retention_ms=60_000)
LEASE_MS = 30_000


@dataclass
class Cut:
    """Cuts a store's next steps short: after `after` calls of what it stands on, done or not done, the answer is lost."""

    after: int | None = None
    done: bool = False

    def falls(self) -> bool:
        if self.after is None:
            return False
        self.after -= 1
        if self.after >= 0:
            return False
        self.after = None
        return True


@dataclass
class Home:
    """Where jobs are kept, and how a router gets at it. `make`: (lease in ms, limits, most live jobs) to a store."""

    kind: str
    make: Callable[[int, Limits, int], Any]
    ahead_s: list[float] = field(default_factory=lambda: [0.0])

    @asynccontextmanager
    async def router(
        self, lease_ms: int = LEASE_MS, limits: Limits = LIMITS, max_live: int = 10_000
    ) -> AsyncIterator[Store]:
        store = self.make(lease_ms, limits, max_live)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    def pass_time(self, seconds: float) -> None:
        """Turn the clock of every store forward."""
        self.ahead_s[0] += seconds


def sqlite_home(path: Path) -> Home:
    nonces = itertools.count()
    ahead_s = [0.0]

    def make(lease_ms: int, limits: Limits, max_live: int) -> SqliteStore:
        return SqliteStore(
            path, limits, lease_ms, max_live, lambda: f"n{next(nonces)}", clock=lambda: 1_700_000_000 + ahead_s[0]
        )

    return Home("sqlite", make, ahead_s)


def redis_home(url: str, prefix: str = "test") -> Home:
    nonces = itertools.count()
    ahead_s = [0.0]

    class Turned(RedisStore):
        """Its clock can be turned; the idle times of entries are Redis's own."""

        def now_ms(self) -> int:
            return super().now_ms() + int(ahead_s[0] * 1000)

    def make(lease_ms: int, limits: Limits, max_live: int) -> RedisStore:
        return Turned(url, prefix, limits, lease_ms, max_live, lambda: f"n{next(nonces)}")

    return Home("redis", make, ahead_s)


def cut_short(store: Any) -> Cut:
    """Let the store's steps be cut. What it stands on is a Redis command, or a SQLite transaction."""
    cut = Cut()
    if isinstance(store, RedisStore):
        _cut_redis(store, cut)
    else:
        _cut_sqlite(store, cut)
    return cut


def _cut_redis(store: Any, cut: Cut) -> None:
    for holder, name in ((store._redis, "execute_command"), (store, "_create")):
        whole = getattr(holder, name)

        async def part(*args: Any, whole: Any = whole, **extra: Any) -> Any:
            if cut.falls():
                if cut.done:
                    await whole(*args, **extra)
                raise RedisConnectionError("cut")
            return await whole(*args, **extra)

        setattr(holder, name, part)


def _cut_sqlite(store: Any, cut: Cut) -> None:
    whole = store._step

    async def part(work: Any) -> Any:
        if not cut.falls():
            return await whole(work)
        if cut.done:
            await whole(work)
        raise JobsUnavailable("cut")

    store._step = part


def draft(job_id: str, digest: str = "d", **fields: Any) -> Draft:
    job = Job(
        **{"id": job_id, "digest": digest, "model": "m", "priority": 3, "created_ms": 1_700_000_000_000, **fields}
    )
    return Draft(job, f"request of {job_id}".encode())


async def submit(store: Store, *drafts: Draft) -> list[Kept]:
    """Submit, and expect that none is refused."""
    kept = await store.submit(drafts)
    assert all(isinstance(one, Kept) for one in kept), kept
    return [one for one in kept if isinstance(one, Kept)]


async def everything(store: Store) -> dict[str, Job]:
    """All jobs, page by page."""
    found: dict[str, Job] = {}
    after = 0
    while True:
        page = await store.page(None, after, 7)
        found |= {job.id: job for job in page.jobs}
        after = page.after
        if not after:
            return found


async def routers(stack: AsyncExitStack, home: Home, leases_ms: Sequence[int]) -> list[Store]:
    return [await stack.enter_async_context(home.router(lease_ms)) for lease_ms in leases_ms]
