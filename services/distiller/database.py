"""One SQLite file of a service. Each step is a transaction, on the disk before it counts, and all are made on one thread."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from ladr.errors import JobsUnavailable, Overloaded

T = TypeVar("T")
RETRY_AFTER = timedelta(seconds=30)


class Database:
    """Raises, anywhere: JobsUnavailable: the file cannot be read or written. Overloaded: the disk is full.

    Args: path: the file; its directory is there. schema: is run at each opening.
    """

    def __init__(self, path: Path, schema: str) -> None:
        self._path = path
        self._schema = schema
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=path.stem)
        self._base: sqlite3.Connection | None = None

    async def open(self, look: Callable[[sqlite3.Connection], None]) -> None:
        """`look`: reads what is there."""
        await self._run(lambda: self._open(look))

    async def close(self) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    async def step(
        self, work: Callable[[sqlite3.Connection], T], look: Callable[[sqlite3.Connection], None] | None = None
    ) -> T:
        """Do `work` as one transaction, to its end also if the caller is cancelled; then `look` at what is there."""
        return await self._run(lambda: self._transact(work, look))

    # What follows runs on the thread.

    def _open(self, look: Callable[[sqlite3.Connection], None]) -> None:
        self._path.touch(mode=0o600)
        base = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = FULL")  # a commit is on the disk: it outlives the loss of power
        base.executescript(self._schema)
        self._base = base
        look(base)

    def _close(self) -> None:
        if self._base:
            self._base.close()
            self._base = None

    def _transact(
        self, work: Callable[[sqlite3.Connection], T], look: Callable[[sqlite3.Connection], None] | None
    ) -> T:
        if self._base is None:
            raise _unavailable()  # not open yet, or closed
        with _transaction(self._base):
            done = work(self._base)
        if look:
            look(self._base)
        return done

    async def _run(self, work: Callable[[], T]) -> T:
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # its caller may have left
        try:
            return await asyncio.shield(done)
        except sqlite3.OperationalError as error:
            raise (_full() if "full" in str(error) else _unavailable()) from error
        except (sqlite3.DatabaseError, OSError) as error:
            raise _unavailable() from error


def _full() -> Overloaded:
    return Overloaded("the disk of the jobs is full; make room", retry_after=RETRY_AFTER)


def _unavailable() -> JobsUnavailable:
    return JobsUnavailable("the jobs cannot be read or written; see the service's log", retry_after=RETRY_AFTER)


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
