"""What is known of the fleet: the newest report of each worker, and who went lately. No clock, no network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from ladr.errors import Overloaded
from ladr.v1.fleet_pb2 import WORKER_STATE_STOPPED, WorkerReport

_MEMORY_TTLS = 10  # for how many TTLs a worker that went is remembered, so that a late report does not raise it again


@dataclass(frozen=True, slots=True)
class Entry:
    """A worker that is there: its newest report, when it was heard, and which change of the fleet that was."""

    report: WorkerReport
    heard_s: float
    version: int
    here: bool = True  # by this instance itself, not through the backend

    @property
    def order(self) -> tuple[str, int]:
        return self.report.incarnation, self.report.sequence


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker that said goodbye or fell silent, and which change of the fleet that was."""

    worker_id: str
    order: tuple[str, int]
    gone_s: float
    version: int

    @property
    def incarnation(self) -> str:
        return self.order[0]


@dataclass(frozen=True, slots=True)
class Changes:
    """The newest state of all that changed, newest change first; `version` is where to ask from next time."""

    version: int
    workers: tuple[Entry, ...]
    gone: tuple[Gone, ...]


class Fleet:
    """The newest report of each worker. A worker id is there, or gone, or unknown; never two of them.

    Every change takes the next version, and a reader asks for what changed since the version that it has. What it missed in
    between costs nothing: only the newest state of a worker is kept. Of the workers that went, the last `max_workers` are
    kept, for 10 TTLs at most; who asks later than that learns it from the age of the report alone.
    """

    def __init__(self, ttl_s: float, max_workers: int) -> None:
        self._ttl_s = ttl_s
        self._max_workers = max_workers
        # Both in order of version: a change takes the id out and puts it in again at the end.
        self._workers: dict[str, Entry] = {}
        self._gone: dict[str, Gone] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._workers)

    def next_expiry_s(self, here_alone: bool = False) -> float:
        """When the next worker falls silent if nothing more is heard; infinity without workers. As for `expire`."""
        heard_s = (entry.heard_s for entry in self._workers.values() if entry.here or not here_alone)
        return min(heard_s, default=math.inf) + self._ttl_s

    def hear(self, report: WorkerReport, heard_s: float, here: bool = True) -> bool:
        """Take a report that was heard at `heard_s`; False if it is not newer (incarnation, sequence) than the last one.

        Raises: Overloaded: a worker more than `max_workers`.
        """
        worker_id, order = report.worker_id, (report.incarnation, report.sequence)
        last, gone = self._workers.get(worker_id), self._gone.get(worker_id)
        if last and order <= last.order:
            return False
        # Once a life has ended any other one is new, whatever its host's clock says: incarnations sort by it.
        if gone and report.incarnation == gone.incarnation and order <= gone.order:
            return False
        if report.state == WORKER_STATE_STOPPED:
            self._bury(worker_id, order, heard_s)
            return True
        if last is None and len(self._workers) >= self._max_workers:
            raise Overloaded(
                "the bus holds as many workers as it may; retry, or raise metrics.max_workers",
                retry_after=timedelta(seconds=self._ttl_s),
            )
        self.version += 1
        self._workers.pop(worker_id, None)
        self._gone.pop(worker_id, None)
        heard_s = max(heard_s, last.heard_s) if last else heard_s
        self._workers[worker_id] = Entry(report, heard_s, self.version, here)
        return True

    def expire(self, now_s: float, here_alone: bool = False) -> list[Gone]:
        """Take out the workers that have been silent for a TTL, and forget those that went long ago.

        `here_alone`: only those that this instance hears itself; the silence of the others may be the backend's.
        """
        silent = [
            entry
            for entry in self._workers.values()
            if now_s >= entry.heard_s + self._ttl_s and (entry.here or not here_alone)
        ]
        gone = [self._bury(entry.report.worker_id, entry.order, now_s) for entry in silent]
        for old in [old for old in self._gone.values() if now_s - old.gone_s >= _MEMORY_TTLS * self._ttl_s]:
            del self._gone[old.worker_id]
        return gone

    def since(self, version: int) -> Changes:
        """What changed after `version`. After 0: all workers, and nobody gone."""
        workers: list[Entry] = []
        for entry in reversed(self._workers.values()):
            if entry.version <= version:
                break
            workers.append(entry)
        gone: list[Gone] = []
        for one in reversed(self._gone.values()):
            if one.version <= version or not version:
                break
            gone.append(one)
        return Changes(self.version, tuple(workers), tuple(gone))

    def _bury(self, worker_id: str, order: tuple[str, int], gone_s: float) -> Gone:
        self.version += 1
        self._workers.pop(worker_id, None)
        self._gone.pop(worker_id, None)
        self._gone[worker_id] = gone = Gone(worker_id, order, gone_s, self.version)
        if len(self._gone) > self._max_workers:
            del self._gone[next(iter(self._gone))]
        return gone
