"""The life of a job: states, events, guards. Pure: a job and an event in, a job out; times are Unix milliseconds.

Attempts are at least once, and exactly one result is accepted: each attempt has a fencing token, a counter with a random part
(the counter alone could come twice after a failover), and what comes with another token than the job's newest is `Stale`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

State = Literal["scheduled", "queued", "running", "succeeded", "dead", "cancelled", "expired"]
STATES: Final[tuple[State, ...]] = ("scheduled", "queued", "running", "succeeded", "dead", "cancelled", "expired")
LIVE: Final[frozenset[State]] = frozenset({"scheduled", "queued", "running"})
LOST: Final = "ATTEMPTS_LOST"


class Stale(Exception):
    """The attempt is not the job's newest, or the job has ended: nothing of it counts any more."""


class Refused(Exception):
    """The job is not in a state for this event."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Attempts that a job may have, and how long one that has ended is kept [ms]."""

    attempts: int = 5
    retention_ms: int = 86_400_000


@dataclass(frozen=True, slots=True)
class Job:
    """A job without its request.

    Attributes:
        digest: of what was submitted; the same name with another one is another request.
        parent: W3C traceparent of its submission, or "".
        attempts: begun so far; their numbers never come twice. excused: of those, how many count for nothing.
        redeliveries: attempts that began because the one before was lost with its router.
        due_ms: not begun before. expires_ms: of no use after; 0: never.
        token: of the attempt that runs or has succeeded, else "".
        error: (reason, message) of the last failure.
    """

    id: str
    digest: str
    model: str
    priority: int
    created_ms: int
    parent: str = ""
    state: State = "queued"
    attempts: int = 0
    excused: int = 0
    redeliveries: int = 0
    due_ms: int = 0
    expires_ms: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    token: str = ""
    error: tuple[str, str] = ("", "")

    @property
    def live(self) -> bool:
        return self.state in LIVE

    def exhausted(self, limits: Limits) -> bool:
        """Whether it has had all its attempts."""
        return self.attempts - self.excused >= limits.attempts

    def wake_ms(self, limits: Limits) -> int:
        """When time alone changes something, if nothing else does before; 0: never."""
        if not self.live:
            return self.finished_ms + limits.retention_ms
        due = [self.due_ms] if self.state == "scheduled" else []
        return min((*due, *([self.expires_ms] if self.expires_ms else [])), default=0)

    def forgotten(self, limits: Limits, now_ms: int) -> bool:
        """Whether its retention time is over."""
        return not self.live and now_ms >= self.finished_ms + limits.retention_ms


@dataclass(frozen=True, slots=True)
class Claim:
    """A router takes it. `lost`: the lease of the attempt before has ended, by the store's own clock."""

    nonce: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Succeed:
    """The attempt has an answer.

    Attributes:
        chunks: how many pieces of the answer the store must have, the last one included.
        last: that last piece. result: what else there is to keep, as bytes.
    """

    token: str
    chunks: int
    last: bytes
    result: bytes


@dataclass(frozen=True, slots=True)
class Fail:
    """The attempt failed. `final`: another one would as well."""

    token: str
    error: tuple[str, str]
    pause_ms: int = 0
    final: bool = False


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The attempt ends through no fault of the job's: it does not count."""

    token: str
    pause_ms: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody wants no answer any more."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Somebody wants a dead letter tried again."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Claim | Succeed | Fail | GiveBack | Cancel | Requeue | Tick


def step(job: Job, event: Event, limits: Limits, now_ms: int) -> Job:
    """The job after an event; the very same job if that changes nothing.

    Raises: Stale: the event's attempt does not count. Refused: not in this state.
    """
    match event:
        case Claim():
            return _claim(job, event, limits, now_ms)
        case Succeed():
            if job.state == "succeeded" and job.token == event.token:
                return job  # told twice: whoever told it did not hear that it was taken
            _current(job, event.token)
            return replace(job, state="succeeded", finished_ms=now_ms, error=("", ""))
        case Fail():
            _current(job, event.token)
            if event.final or job.exhausted(limits):
                return _ended(job, "dead", now_ms, event.error)
            return _later(replace(job, error=event.error), event.pause_ms, now_ms)
        case GiveBack():
            _current(job, event.token)
            return _later(replace(job, excused=job.excused + 1), event.pause_ms, now_ms)
        case Cancel():
            return _ended(job, "cancelled", now_ms, job.error) if job.live else job
        case Requeue():
            if job.state != "dead":
                raise Refused(f"it is {job.state}, not dead")
            return replace(job, state="queued", excused=job.attempts, due_ms=0, expires_ms=0, finished_ms=0)
        case Tick():
            if job.live and job.expires_ms and now_ms >= job.expires_ms:
                return _ended(job, "expired", now_ms, job.error)
            if job.state == "scheduled" and now_ms >= job.due_ms:
                return replace(job, state="queued")
            return job


def _claim(job: Job, claim: Claim, limits: Limits, now_ms: int) -> Job:
    """The next attempt; a job whose routers were lost again and again is given up, since it may be what kills them."""
    if job.token and job.token.partition("-")[2] == claim.nonce:
        return job  # told twice
    if job.expires_ms and job.live and now_ms >= job.expires_ms:
        return _ended(job, "expired", now_ms, job.error)
    if job.state == "running" and claim.lost:
        if job.exhausted(limits):
            return _ended(job, "dead", now_ms, (LOST, "every attempt was lost with the router that made it"))
        job = replace(job, redeliveries=job.redeliveries + 1)
    elif job.state != "queued":
        raise Refused(f"it is {job.state}, not queued")
    attempts = job.attempts + 1
    return replace(job, state="running", attempts=attempts, started_ms=now_ms, token=f"{attempts}-{claim.nonce}")


def _current(job: Job, token: str) -> None:
    if job.state != "running" or job.token != token:
        raise Stale(f"the attempt {token.partition('-')[0]} of a job that is {job.state} does not count")


def _later(job: Job, pause_ms: int, now_ms: int) -> Job:
    due_ms = now_ms + pause_ms if pause_ms else job.due_ms
    return replace(job, state="scheduled" if pause_ms else "queued", due_ms=due_ms, token="")


def _ended(job: Job, state: State, now_ms: int, error: tuple[str, str]) -> Job:
    return replace(job, state=state, finished_ms=now_ms, token="", error=error)
