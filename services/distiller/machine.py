"""The life of a job: states, events, guards. Pure: a job and an event in, a job out; times are Unix milliseconds.

Every start of a trainer has a number, and what comes of another start than the job's newest counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATES: Final[tuple[State, ...]] = ("queued", "running", "succeeded", "failed", "cancelled")
LIVE: Final[frozenset[State]] = frozenset({"queued", "running"})
MOST_DEATHS: Final = 3  # of trainers in a row that got no further


class Refused(Exception):
    """The job is not in a state for this event."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job failed; `log`: the last lines of its trainer."""

    reason: str
    message: str
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a trainer came: its newest checkpoint, and the last progress of it (phase, step)."""

    checkpoint: str = ""
    phase: int = 0
    step: int = 0

    def beyond(self, other: Mark) -> bool:
        """Whether it came further than `other`: another checkpoint, and a later step."""
        return self.checkpoint != other.checkpoint and (self.phase, self.step) > (other.phase, other.step)


@dataclass(frozen=True, slots=True)
class Job:
    """A job.

    Attributes:
        spec: what it does, as JSON. digest: of that; the same request_id with another one is another request.
        device, processes: what it asks for; see `devices`.
        queued_ms: its place in the queue. A job that goes on after a death or a restart keeps it.
        starts: of its trainer, so far. deaths: of trainers in a row that got no further than `mark`.
        student, int8: places under the model root of the student and of its INT8 form, or "".
    """

    id: str
    spec: str
    digest: str
    created_ms: int
    queued_ms: int
    request_id: str = ""
    device: str = ""
    processes: int = 1
    state: State = "queued"
    started_ms: int = 0
    finished_ms: int = 0
    starts: int = 0
    deaths: int = 0
    mark: Mark = Mark()
    failure: Failure | None = None
    student: str = ""
    figures: tuple[tuple[str, float], ...] = ()
    int8: str = ""

    @property
    def live(self) -> bool:
        return self.state in LIVE


@dataclass(frozen=True, slots=True)
class Start:
    """Its trainer is about to be started."""


@dataclass(frozen=True, slots=True)
class Succeed:
    """The trainer is done; the student is where workers find it, and its INT8 form if it is good enough."""

    start: int
    student: str
    figures: tuple[tuple[str, float], ...]
    int8: str = ""


@dataclass(frozen=True, slots=True)
class Fail:
    """Another start would end alike. `start`: 0 before the first."""

    start: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Die:
    """The trainer was ended by something that another start may be spared."""

    start: int
    mark: Mark
    failure: Failure


@dataclass(frozen=True, slots=True)
class Yield:
    """The trainer has ended because its service ended: that counts for nothing."""

    start: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody wants it any more."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Somebody wants it after all."""


Event = Start | Succeed | Fail | Die | Yield | Cancel | Resume


def step(job: Job, event: Event, now_ms: int) -> Job:
    """The job after an event; the very same job if that changes nothing.

    Raises: Refused: not in this state.
    """
    match event:
        case Start():
            if job.state != "queued":
                raise Refused(f"it is {job.state}, not queued")
            return replace(job, state="running", started_ms=now_ms, starts=job.starts + 1)
        case Cancel():
            return replace(job, state="cancelled", finished_ms=now_ms) if job.live else job
        case Resume():
            if job.state not in ("failed", "cancelled"):
                raise Refused(f"it is {job.state}: only a job that failed or was cancelled can be resumed")
            return replace(job, state="queued", queued_ms=now_ms, finished_ms=0, deaths=0, mark=Mark(), failure=None)
        case Fail(start, failure):
            if not job.live or job.starts != start:
                return job
            return replace(job, state="failed", finished_ms=now_ms, failure=failure)
    if job.state != "running" or job.starts != event.start:
        return job
    match event:
        case Succeed():
            job = replace(job, student=event.student, int8=event.int8, figures=event.figures)
            return replace(job, state="succeeded", finished_ms=now_ms, failure=None)
        case Die():
            return _died(job, event, now_ms)
        case Yield():
            return replace(job, state="queued")


def _died(job: Job, death: Die, now_ms: int) -> Job:
    """It goes on from its last checkpoint, unless its trainers die again and again at the same place."""
    deaths = 1 if job.deaths == 0 or death.mark.beyond(job.mark) else job.deaths + 1
    if deaths >= MOST_DEATHS:
        return replace(job, state="failed", finished_ms=now_ms, deaths=deaths, mark=death.mark, failure=death.failure)
    return replace(job, state="queued", deaths=deaths, mark=death.mark)
