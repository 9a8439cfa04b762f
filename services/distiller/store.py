"""Jobs in one SQLite file.

One service has the file: `live` and `states` tell without asking it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from ladr.errors import AlreadyExists, Overloaded
from services.distiller.database import RETRY_AFTER, Database
from services.distiller.machine import LIVE, STATES, Event, Failure, Job, Mark, Refused, Resume, State, step

T = TypeVar("T")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, request_id TEXT UNIQUE, state TEXT NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS job_by_state ON job (state, seq);
CREATE TABLE IF NOT EXISTS doomed (id TEXT PRIMARY KEY) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs in the order in which they came, each with its number; and whether there are more."""

    jobs: Sequence[tuple[int, Job]]
    more: bool


class Store:
    """Keeps jobs. Raises, anywhere: JobsUnavailable: the file cannot be read or written. Overloaded: the disk is full.

    Args:
        path: the file; its directory is there. most_live: jobs that have not ended.

    Attributes:
        live: the jobs that have not ended, in their order in the queue; replaced whole at each change.
        states: how many jobs there are in each state; replaced whole as well.
    """

    def __init__(self, path: Path, most_live: int, clock: Callable[[], float] = time.time) -> None:
        self._base = Database(path, _SCHEMA)
        self._most_live = most_live
        self._clock = clock
        self.live: Mapping[str, Job] = {}
        self.states: Mapping[State, int] = dict.fromkeys(STATES, 0)

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def open(self) -> None:
        await self._base.open(self._look)

    async def close(self) -> None:
        await self._base.close()

    async def create(self, job: Job) -> Job:
        """Keep a new job, or find the one that its request_id names. Raises: AlreadyExists."""

        def work(base: sqlite3.Connection) -> Job:
            row = base.execute("SELECT record FROM job WHERE request_id = ?", (job.request_id,)).fetchone()
            if row:
                kept = _load(row[0])
                if kept.digest == job.digest:
                    return kept
                raise AlreadyExists(
                    "this request_id belongs to another job; take another name, or delete that job first",
                    resource=("distill_job", kept.id),
                )
            self._check_room()
            base.execute(
                "INSERT INTO job (id, request_id, state, record) VALUES (?, ?, ?, ?)",
                (job.id, job.request_id or None, job.state, _dump(job)),
            )
            return job

        return await self._change(work)

    async def get(self, job_id: str) -> Job | None:
        """A job, if there is one of that id."""
        return await self._step(lambda base: _find(base, job_id))

    async def apply(self, job_id: str, event: Event) -> Job | None:
        """`machine.step` as one step; None: there is no such job. Raises: Refused. Overloaded: too many wait to resume one."""

        def work(base: sqlite3.Connection) -> Job | None:
            job = _find(base, job_id)
            if job is None:
                return None
            after = step(job, event, self.now_ms())
            if after is not job:
                if isinstance(event, Resume):
                    self._check_room()
                base.execute("UPDATE job SET state = ?, record = ? WHERE id = ?", (after.state, _dump(after), job_id))
            return after

        return await self._change(work)

    async def page(self, state: State | None, after: int, count: int) -> Page:
        """At most `count` jobs with a number over `after`, of one state or of all."""

        def work(base: sqlite3.Connection) -> Page:
            of_state = "state = :state AND" if state else ""
            rows = base.execute(
                f"SELECT seq, record FROM job WHERE {of_state} seq > :after ORDER BY seq LIMIT :count",  # noqa: S608  # no text of a caller's
                {"state": state, "after": after, "count": count + 1},
            ).fetchall()
            return Page([(number, _load(record)) for number, record in rows[:count]], len(rows) > count)

        return await self._step(work)

    async def delete(self, job_id: str) -> bool:
        """Forget a job that has ended; its directory is doomed. False: there is none. Raises: Refused: it has not ended."""

        def work(base: sqlite3.Connection) -> bool:
            job = _find(base, job_id)
            if job is None:
                return False
            if job.live:
                raise Refused(f"it is {job.state}: cancel it first")
            base.execute("DELETE FROM job WHERE id = ?", (job_id,))
            base.execute("INSERT OR IGNORE INTO doomed VALUES (?)", (job_id,))
            return True

        return await self._change(work)

    async def doomed(self) -> list[str]:
        """Jobs that were deleted, and whose directories may still be there."""
        return await self._step(lambda base: [name for (name,) in base.execute("SELECT id FROM doomed")])

    async def removed(self, job_id: str) -> None:
        """The directory of a deleted job is gone."""
        await self._step(lambda base: base.execute("DELETE FROM doomed WHERE id = ?", (job_id,)))

    # What follows runs on the thread.

    def _look(self, base: sqlite3.Connection) -> None:
        rows = base.execute("SELECT record FROM job WHERE state IN ('queued', 'running') ORDER BY seq")
        self.live = {job.id: job for job in sorted((_load(row) for (row,) in rows), key=lambda job: job.queued_ms)}
        states: dict[State, int] = dict.fromkeys(STATES, 0)
        states.update(base.execute("SELECT state, count(*) FROM job GROUP BY state").fetchall())
        self.states = states

    def _check_room(self) -> None:
        if sum(self.states[state] for state in LIVE) >= self._most_live:
            raise Overloaded("as many jobs wait as may; try again when one has ended", retry_after=RETRY_AFTER)

    async def _change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """A step after which `live` and `states` are as it left them."""
        return await self._base.step(work, self._look)

    async def _step(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._base.step(work)


def _find(base: sqlite3.Connection, job_id: str) -> Job | None:
    row = base.execute("SELECT record FROM job WHERE id = ?", (job_id,)).fetchone()
    return _load(row[0]) if row else None


def _dump(job: Job) -> str:
    return json.dumps(asdict(job), separators=(",", ":"))


def _load(text: str) -> Job:
    fields = json.loads(text)
    failure = fields.pop("failure")
    if failure:
        failure = Failure(failure["reason"], failure["message"], tuple(failure["log"]))
    mark = Mark(**fields.pop("mark"))
    figures = tuple((name, value) for name, value in fields.pop("figures"))
    return Job(**fields, failure=failure, mark=mark, figures=figures)
