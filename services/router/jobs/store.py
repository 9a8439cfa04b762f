"""Where jobs are kept: one interface, a file per kind of store.

Every method is one atomic step, or several that may be cut anywhere: whatever is left is taken up again. Told twice, a step
does what it does once, so a caller that has not heard an answer asks again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Protocol

from ladr.errors import AlreadyExists, JobsUnavailable, LadrError, Overloaded
from services.router.jobs.machine import Event, Job, State

RETRY_AFTER = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Draft:
    """A job to be kept, with its request."""

    job: Job
    request: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """A job that was submitted; `new`: by this call, not by an earlier one."""

    job: Job
    new: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """A job that this router runs now."""

    job: Job
    request: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs in the order in which they came, and where the next page begins; 0: nowhere."""

    jobs: Sequence[Job]
    after: int


@dataclass(frozen=True, slots=True)
class Census:
    """How many jobs there are in each state, and when the oldest that waits was accepted [Unix ms]; 0: none waits."""

    states: Mapping[State, int]
    oldest_ms: int


class Store(Protocol):
    """Keeps jobs. Raises, anywhere: JobsUnavailable: the store does not answer. Overloaded: it is full."""

    async def open(self) -> None:
        """Be ready for the other methods, or raise."""

    async def close(self) -> None:
        """Nothing is called after."""

    def now_ms(self) -> int:
        """The store's time, in Unix milliseconds."""

    async def submit(self, drafts: Sequence[Draft]) -> list[Kept | LadrError]:
        """Keep new jobs; for each the job, which may have been there before, or why not."""

    async def get(self, job_id: str) -> Job | None:
        """A job, if there is one of that name."""

    async def apply(self, job_id: str, event: Event) -> Job | None:
        """`machine.step` as one atomic step; None: there is no such job. Raises: Stale, Refused."""

    async def claim(self, count: int) -> list[Taken]:
        """Take up to `count` jobs that are queued: urgent ones first, then as they came."""

    async def reclaim(self, count: int) -> list[Taken]:
        """Take up to `count` jobs whose lease has ended."""

    async def beat(self, job_id: str, token: str) -> bool:
        """Renew a lease; False: the attempt does not count any more."""

    async def append(self, job_id: str, token: str, index: int, chunk: bytes) -> None:
        """Keep piece number `index` of an attempt's answer. Raises: Stale: the attempt does not count any more."""

    async def look(self, job_id: str, index: int, count: int) -> tuple[Job, list[bytes]] | None:
        """A job and pieces of its newest attempt's answer from `index`, of one moment; None: no such job."""

    async def result(self, job_id: str) -> bytes:
        """What `Succeed` gave; empty if there is nothing."""

    async def page(self, state: State | None, after: int, count: int) -> Page:
        """A page of jobs, of one state or of all."""

    async def delete(self, job_id: str) -> bool:
        """Forget a job that has ended; False: there is none. Raises: Refused: it has not ended."""

    async def sweep(self, count: int) -> int:
        """Let time do its work on up to `count` jobs: due, expired, forgotten. Gives how many there were."""

    async def census(self) -> Census:
        """Count the jobs."""


def dump(job: Job) -> str:
    """A job as JSON."""
    return json.dumps(asdict(job), separators=(",", ":"))


def load(text: str | bytes) -> Job:
    """The job again."""
    fields = json.loads(text)
    reason, message = fields.pop("error")
    return Job(**fields, error=(reason, message))


def same(kept: Job, draft: Draft) -> Kept | LadrError:
    """What a submission gets whose name is taken."""
    if kept.digest == draft.job.digest:
        return Kept(kept, new=False)
    return AlreadyExists(
        "this request_id belongs to another request; take another name, or delete that job first",
        resource=("generation", kept.id),
    )


def too_many() -> Overloaded:
    """As many jobs wait as may."""
    return Overloaded("as many jobs wait as the store may hold; try again later", retry_after=RETRY_AFTER)


def full() -> Overloaded:
    """The store has no room."""
    return Overloaded("the job store is full; try again later", retry_after=RETRY_AFTER)


def unavailable() -> JobsUnavailable:
    """The store does not answer."""
    return JobsUnavailable("the job store does not answer; try again", retry_after=RETRY_AFTER)
