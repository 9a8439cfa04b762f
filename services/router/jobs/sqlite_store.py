"""Jobs in one SQLite file, for routers on one machine. Each step is a transaction, on the disk before it counts.

Leases go by the machine's wall clock: if that is set forward, a job may be attempted twice, and one result is still accepted.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ladr.errors import LadrError
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

T = TypeVar("T")
_BUSY_S = 5.0  # how long a step waits for another process's
_AHEAD_MS = 60_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, priority INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, wake_ms INTEGER, beat_ms INTEGER, record TEXT NOT NULL, request BLOB NOT NULL,
    result BLOB NOT NULL DEFAULT x''
);
CREATE INDEX IF NOT EXISTS job_by_state ON job (state, seq);
CREATE INDEX IF NOT EXISTS job_to_run ON job (priority, seq) WHERE state = 'queued';
CREATE INDEX IF NOT EXISTS job_to_wake ON job (wake_ms) WHERE wake_ms IS NOT NULL;
CREATE TABLE IF NOT EXISTS chunk (
    id TEXT NOT NULL, n INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (id, n)
) WITHOUT ROWID;
"""


class SqliteStore:
    """A `Store`. All work is done on one thread, a step at a time.

    Args:
        path: the file; it and its directory are made if need be, for this user alone.
        lease_ms: how long an attempt counts without a beat. max_live: most jobs that have not ended.
        make_nonce: a random word for a fencing token.
    """

    def __init__(
        self,
        path: Path,
        limits: Limits,
        lease_ms: int,
        max_live: int,
        make_nonce: Callable[[], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._limits = limits
        self._lease_ms = lease_ms
        self._max_live = max_live
        self._make_nonce = make_nonce
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jobs")
        self._base: sqlite3.Connection | None = None

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def open(self) -> None:
        await self._run(self._open)

    async def close(self) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    async def submit(self, drafts: Sequence[Draft]) -> list[Kept | LadrError]:
        def work(base: sqlite3.Connection) -> list[Kept | LadrError]:
            room = self._max_live - self._count(base, tuple(LIVE))
            found: list[Kept | LadrError] = []
            for draft in drafts:
                kept = self._find(base, draft.job.id)
                if kept:
                    found.append(same(kept, draft))
                elif room <= 0:
                    found.append(too_many())
                else:
                    room -= 1
                    self._insert(base, draft)
                    found.append(Kept(draft.job, new=True))
            return found

        return await self._step(work)

    async def get(self, job_id: str) -> Job | None:
        return await self._step(lambda base: self._find(base, job_id))

    async def apply(self, job_id: str, event: Event) -> Job | None:
        return await self._step(lambda base: self._apply(base, job_id, event))

    async def claim(self, count: int) -> list[Taken]:
        query = "SELECT id FROM job WHERE state = 'queued' ORDER BY priority, seq LIMIT ?"
        return await self._step(lambda base: self._take(base, query, (count,), lost=False))

    async def reclaim(self, count: int) -> list[Taken]:
        now_ms = self.now_ms()
        # a beat of the future is one from before the clock was set back
        query = "SELECT id FROM job WHERE state = 'running' AND (beat_ms < ? OR beat_ms > ?) LIMIT ?"
        bounds = (now_ms - self._lease_ms, now_ms + _AHEAD_MS, count)
        return await self._step(lambda base: self._take(base, query, bounds, lost=True))

    async def beat(self, job_id: str, token: str) -> bool:
        def work(base: sqlite3.Connection) -> bool:
            job = self._find(base, job_id)
            if not job or job.state != "running" or job.token != token:
                return False
            self._beat(base, job_id)
            return True

        return await self._step(work)

    async def append(self, job_id: str, token: str, index: int, chunk: bytes) -> None:
        def work(base: sqlite3.Connection) -> None:
            job = self._find(base, job_id)
            if not job or job.state != "running" or job.token != token or self._chunks(base, job_id) < index:
                raise Stale("the attempt does not count any more")
            base.execute("INSERT OR REPLACE INTO chunk VALUES (?, ?, ?)", (job_id, index, chunk))

        await self._step(work)

    async def look(self, job_id: str, index: int, count: int) -> tuple[Job, list[bytes]] | None:
        def work(base: sqlite3.Connection) -> tuple[Job, list[bytes]] | None:
            job = self._find(base, job_id)
            if not job:
                return None
            rows = base.execute(
                "SELECT data FROM chunk WHERE id = ? AND n >= ? ORDER BY n LIMIT ?", (job_id, index, count)
            )
            return job, [data for (data,) in rows]

        return await self._step(work)

    async def result(self, job_id: str) -> bytes:
        def work(base: sqlite3.Connection) -> bytes:
            row = base.execute("SELECT result FROM job WHERE id = ?", (job_id,)).fetchone()
            return bytes(row[0]) if row else b""

        return await self._step(work)

    async def page(self, state: State | None, after: int, count: int) -> Page:
        def work(base: sqlite3.Connection) -> Page:
            of_state = "state = :state AND" if state else ""
            rows = base.execute(
                f"SELECT seq, record FROM job WHERE {of_state} seq > :after ORDER BY seq LIMIT :count",  # noqa: S608  # no text of a caller's
                {"state": state, "after": after, "count": count},
            ).fetchall()
            return Page([load(record) for _, record in rows], rows[-1][0] if len(rows) == count else 0)

        return await self._step(work)

    async def delete(self, job_id: str) -> bool:
        def work(base: sqlite3.Connection) -> bool:
            job = self._find(base, job_id)
            if job and job.live:
                raise Refused(f"it is {job.state}: cancel it first")
            self._forget(base, job_id)
            return job is not None

        return await self._step(work)

    async def sweep(self, count: int) -> int:
        def work(base: sqlite3.Connection) -> int:
            now_ms = self.now_ms()
            query = "SELECT id FROM job WHERE wake_ms <= ? ORDER BY wake_ms LIMIT ?"
            names = [job_id for (job_id,) in base.execute(query, (now_ms, count)).fetchall()]
            for job_id in names:
                job = self._apply(base, job_id, Tick())
                if job and job.forgotten(self._limits, now_ms):
                    self._forget(base, job_id)
            return len(names)

        return await self._step(work)

    async def census(self) -> Census:
        def work(base: sqlite3.Connection) -> Census:
            states: dict[State, int] = dict.fromkeys(STATES, 0)
            states.update(base.execute("SELECT state, count(*) FROM job GROUP BY state").fetchall())
            oldest = base.execute("SELECT created_ms FROM job WHERE state = 'queued' ORDER BY seq LIMIT 1").fetchone()
            return Census(states, oldest[0] if oldest else 0)

        return await self._step(work)

    # What follows runs on the thread.

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        base = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = FULL")  # a commit is on the disk: it outlives the loss of power
        base.executescript(_SCHEMA)
        self._base = base

    def _close(self) -> None:
        if self._base:
            self._base.close()
            self._base = None

    async def _step(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def transaction() -> T:
            if self._base is None:
                raise unavailable()  # not open yet
            with _transaction(self._base):
                return work(self._base)

        return await self._run(transaction)

    async def _run(self, work: Callable[[], T]) -> T:
        """Do it on the thread; it is done to its end also if its caller is cancelled."""
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # its caller may have left
        try:
            return await asyncio.shield(done)
        except sqlite3.OperationalError as error:
            raise (full() if "full" in str(error) else unavailable()) from error
        except (sqlite3.DatabaseError, OSError) as error:
            raise unavailable() from error

    def _find(self, base: sqlite3.Connection, job_id: str) -> Job | None:
        row = base.execute("SELECT record FROM job WHERE id = ?", (job_id,)).fetchone()
        return load(row[0]) if row else None

    def _insert(self, base: sqlite3.Connection, draft: Draft) -> None:
        job = draft.job
        base.execute(
            "INSERT INTO job (id, state, priority, created_ms, wake_ms, record, request) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                job.id,
                job.state,
                job.priority,
                job.created_ms,
                job.wake_ms(self._limits) or None,
                dump(job),
                draft.request,
            ),
        )

    def _apply(self, base: sqlite3.Connection, job_id: str, event: Event) -> Job | None:
        job = self._find(base, job_id)
        if job is None:
            return None
        after = step(job, event, self._limits, self.now_ms())
        if after is job:
            return job
        if isinstance(event, Succeed):
            if self._chunks(base, job_id) != event.chunks - 1:
                raise Stale("pieces of the answer are missing in the store")
            base.execute("INSERT INTO chunk VALUES (?, ?, ?)", (job_id, event.chunks - 1, event.last))
            base.execute("UPDATE job SET result = ? WHERE id = ?", (event.result, job_id))
        if isinstance(event, Claim):
            base.execute("DELETE FROM chunk WHERE id = ?", (job_id,))
            self._beat(base, job_id)
        base.execute(
            "UPDATE job SET state = ?, wake_ms = ?, record = ? WHERE id = ?",
            (after.state, after.wake_ms(self._limits) or None, dump(after), job_id),
        )
        return after

    def _take(self, base: sqlite3.Connection, query: str, values: tuple[int, ...], lost: bool) -> list[Taken]:
        taken = []
        for (job_id,) in base.execute(query, values).fetchall():
            job = self._apply(base, job_id, Claim(self._make_nonce(), lost))
            if job and job.state == "running":
                (request,) = base.execute("SELECT request FROM job WHERE id = ?", (job_id,)).fetchone()
                taken.append(Taken(job, request))
        return taken

    def _beat(self, base: sqlite3.Connection, job_id: str) -> None:
        base.execute("UPDATE job SET beat_ms = ? WHERE id = ?", (self.now_ms(), job_id))

    def _chunks(self, base: sqlite3.Connection, job_id: str) -> int:
        (last,) = base.execute("SELECT max(n) FROM chunk WHERE id = ?", (job_id,)).fetchone()
        return 0 if last is None else int(last) + 1

    def _count(self, base: sqlite3.Connection, states: tuple[State, ...]) -> int:
        marks = ", ".join("?" * len(states))
        (count,) = base.execute(f"SELECT count(*) FROM job WHERE state IN ({marks})", states).fetchone()  # noqa: S608  # only marks
        return int(count)

    def _forget(self, base: sqlite3.Connection, job_id: str) -> None:
        base.execute("DELETE FROM job WHERE id = ?", (job_id,))
        base.execute("DELETE FROM chunk WHERE id = ?", (job_id,))


@contextmanager
def _transaction(base: sqlite3.Connection) -> Iterator[None]:
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
        base.execute("COMMIT")
    except BaseException:
        if base.in_transaction:
            base.execute("ROLLBACK")
        raise
