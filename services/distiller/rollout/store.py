"""Roll-outs in one SQLite file, of which one service has them all in memory: `records` tells without asking it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ladr.errors import AlreadyExists, Overloaded
from services.distiller.database import RETRY_AFTER, Database
from services.distiller.rollout.record import Record, dump, load

MOST_LIVE = 16
MOST_KEPT = 1000  # the oldest of those that have ended are forgotten first
_SCHEMA = """
CREATE TABLE IF NOT EXISTS rollout (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, record TEXT NOT NULL
);
"""


class RolloutStore:
    """Keeps roll-outs. Raises, anywhere: JobsUnavailable, Overloaded: see Database.

    Attributes:
        records: all that there are, by id, oldest first; replaced whole at each change.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._base = Database(path, _SCHEMA)
        self._clock = clock
        self._creating = asyncio.Lock()
        self.records: Mapping[str, Record] = {}

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    @property
    def live(self) -> list[Record]:
        return [record for record in self.records.values() if record.live]

    async def open(self) -> None:
        await self._base.open(self._read)

    async def close(self) -> None:
        await self._base.close()

    def named(self, request_id: str, digest: str) -> Record | None:
        """The roll-out that a client's name stands for. Raises: AlreadyExists: it belongs to another request."""
        for record in self.records.values():
            if request_id and record.request_id == request_id:
                if record.digest == digest:
                    return record
                raise AlreadyExists(
                    "this request_id belongs to another roll-out; take another name", resource=("rollout", record.id)
                )
        return None

    def check(self, split: str, model: str) -> None:
        """Raises: AlreadyExists: such a roll-out goes on. Overloaded: as many go on as may."""
        live = self.live
        for record in live:
            if record.split == split or record.model == model:
                raise AlreadyExists(
                    f"{(split if record.split == split else model)[:64]!r} is being rolled out; cancel that first, or wait",
                    resource=("rollout", record.id),
                )
        if len(live) >= MOST_LIVE:
            message = f"{MOST_LIVE} roll-outs go on, and no more may; try again when one has ended"
            raise Overloaded(message, retry_after=RETRY_AFTER)

    async def create(self, record: Record) -> Record:
        """Keep a new one, or find the one that its request_id names. Raises: AlreadyExists, Overloaded."""
        async with self._creating:
            if kept := self.named(record.request_id, record.digest):
                return kept
            self.check(record.split, record.model)
            ended = [one.id for one in self.records.values() if not one.live]
            old = ended[: max(0, len(self.records) + 1 - MOST_KEPT)]

            def work(base: sqlite3.Connection) -> None:
                base.execute("INSERT INTO rollout (id, record) VALUES (?, ?)", (record.id, dump(record)))
                base.executemany("DELETE FROM rollout WHERE id = ?", [(each,) for each in old])

            await self._base.step(work)
            self.records = {name: one for name, one in self.records.items() if name not in old}
            self.note(record)
            return record

    async def save(self, record: Record) -> None:
        """Put it on the disk as it is now."""

        def work(base: sqlite3.Connection) -> None:
            base.execute("UPDATE rollout SET record = ? WHERE id = ?", (dump(record), record.id))

        await self._base.step(work)
        self.note(record)

    def note(self, record: Record) -> None:
        """Have it in memory alone: what a crash may lose."""
        self.records = {**self.records, record.id: record}

    def _read(self, base: sqlite3.Connection) -> None:
        kept = [load(text) for (text,) in base.execute("SELECT record FROM rollout ORDER BY seq")]
        self.records = {record.id: record for record in kept}
