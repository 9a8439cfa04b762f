"""Jobs as clients see them: taken, looked at, watched, stopped. Between the messages of the contract and the store."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.json_format import ParseDict

from ladr.config import DistillerSettings
from ladr.errors import Draining, InvalidRequest, LadrError, NotFound, Overloaded, WrongState
from ladr.request import MAX_ID_BYTES
from ladr.v1 import distiller_pb2 as pb
from services.distiller import progress
from services.distiller.checks import check
from services.distiller.dispatcher import Dispatcher
from services.distiller.machine import Cancel, Job, Refused, Resume, State
from services.distiller.outcome import published
from services.distiller.place import Place
from services.distiller.spec import from_message
from services.distiller.store import Page, Store

log = structlog.get_logger()

_POLL_S = (0.05, 0.5)  # between two looks at a job that is watched: shortly after news, and when there is none
_PIECES = 64  # of progress, read at once
_REPORT_BYTES = 4 << 20  # of report.json, and of report.html
_RETRY_AFTER = timedelta(seconds=1)
_NUMBERS: dict[State, Any] = {
    name.removeprefix("DISTILL_STATE_").lower(): number  # type: ignore[misc]  # the names are those of State
    for name, number in pb.DistillState.items()
    if number
}
_STATES: dict[int, State] = {number: state for state, number in _NUMBERS.items()}


class Jobs:
    """What the methods of ladr.v1.Distiller do.

    Args: make_id: makes a job's id.
    """

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        settings: DistillerSettings,
        devices: tuple[str, ...],
        make_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._settings = settings
        self._devices = devices
        self._make_id = make_id
        self._closed = False
        self._removing: set[asyncio.Task[None]] = set()
        self.watchers = 0

    def close(self) -> None:
        """End the watches: their watchers come back when the service does."""
        self._closed = True

    async def create(self, spec: pb.DistillSpec, request_id: str) -> pb.DistillJob:
        """Take a job. Raises: InvalidRequest, AlreadyExists, Overloaded, JobsUnavailable."""
        if len(request_id.encode()) > MAX_ID_BYTES:
            raise InvalidRequest(f"request_id may have {MAX_ID_BYTES} bytes at most", field="request_id")
        whole = from_message(spec)
        await asyncio.to_thread(check, whole, self._settings, self._devices)
        text = whole.model_dump_json(exclude_none=True)
        now_ms = self._store.now_ms()
        job = await self._store.create(
            Job(
                id=self._make_id(),
                spec=text,
                digest=hashlib.sha256(text.encode()).hexdigest(),
                created_ms=now_ms,
                queued_ms=now_ms,
                request_id=request_id,
                device=whole.training.device,
                processes=whole.training.processes,
            )
        )
        self._dispatcher.changed()
        return await self._told(job)

    async def get(self, job_id: str) -> pb.DistillJob:
        """A job. Raises: NotFound, JobsUnavailable."""
        return await self._told(await self._find(job_id))

    async def page(self, request: pb.ListDistillJobsRequest) -> pb.ListDistillJobsResponse:
        """A page of jobs. Raises: InvalidRequest, JobsUnavailable."""
        if not 0 <= request.page_size <= 1000:
            raise InvalidRequest("page_size must be 1 to 1000, or 0 for 100", field="page_size")
        if request.state and request.state not in _STATES:
            raise InvalidRequest("there is no such state", field="state")
        after = _after(request.page_token, request.state)
        page = await self._store.page(_STATES.get(request.state), after, request.page_size or 100)
        return await asyncio.to_thread(self._page, page, request.state)

    async def watch(self, job_id: str, from_start: bool) -> AsyncGenerator[pb.WatchDistillJobResponse]:
        """The job, then what happens to it. It is read from its file as fast as the watcher takes it.

        Raises: NotFound, Overloaded, Draining, JobsUnavailable.
        """
        with self._watcher():
            job = await self._find(job_id)
            place = self._dispatcher.place(job_id)
            offset = await asyncio.to_thread(progress.back if from_start else progress.end, place)
            seen: tuple[Any, ...] = ()
            pause_s, longest_s = _POLL_S
            while True:
                if seen != (job.state, job.starts):
                    seen = (job.state, job.starts)
                    if job.live:  # how it ended is told last
                        yield pb.WatchDistillJobResponse(job=await self._told(job))
                news = await asyncio.to_thread(_read, place, offset) if _size(place) > offset else []
                for one, offset in news:  # noqa: B007  # the last offset is where the next look begins
                    yield pb.WatchDistillJobResponse(progress=one)
                if not job.live and not news:
                    yield pb.WatchDistillJobResponse(job=await self._told(job))
                    return
                if self._closed:
                    raise Draining("the distiller is going away; watch again when it is back")
                if len(news) < _PIECES:
                    pause_s = _POLL_S[0] if news else min(2 * pause_s, longest_s)
                    await asyncio.sleep(pause_s)
                job = self._store.live.get(job_id) or await self._find(job_id)

    async def cancel(self, job_id: str) -> pb.DistillJob:
        """Stop a job. Raises: NotFound, JobsUnavailable."""
        job = await self._store.apply(job_id, Cancel())
        if job is None:
            raise _unknown(job_id)
        self._dispatcher.cancelled(job_id)
        return await self._told(job)

    async def resume(self, job_id: str) -> pb.DistillJob:
        """Queue a job again. Raises: NotFound, WrongState, Overloaded, JobsUnavailable."""
        try:
            job = await self._store.apply(job_id, Resume())
        except Refused as refused:
            raise _wrong(job_id, refused) from None
        if job is None:
            raise _unknown(job_id)
        self._dispatcher.changed()
        return await self._told(job)

    async def delete(self, job_id: str) -> None:
        """Forget a job that has ended, with its files. Raises: NotFound, WrongState, JobsUnavailable."""
        try:
            there = await self._store.delete(job_id)
        except Refused as refused:
            raise _wrong(job_id, refused) from None
        if not there:
            raise _unknown(job_id)
        removing = asyncio.create_task(self._remove(job_id))
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)
        await asyncio.shield(removing)

    async def report(self, job_id: str, html: bool) -> pb.DistillReport:
        """What was measured; `html`: with the page. Raises: NotFound, WrongState, JobsUnavailable."""
        job = await self._find(job_id)
        found = await asyncio.to_thread(_report, self._dispatcher.place(job.id), html)
        if found is None:
            raise _no_student(job) or WrongState(
                f"the job is {job.state}, and has no report yet: wait until it has succeeded", resource=_named(job.id)
            )
        return found

    async def get_to_publish(self, job_id: str) -> pb.DistillJob:
        """A job whose student is there, or may come yet. Raises: NotFound, WrongState, JobsUnavailable."""
        job = await self._find(job_id)
        if refused := _no_student(job):
            raise refused
        return await self._told(job)

    async def clean(self) -> None:
        """Remove what a service before left of deleted jobs."""
        for job_id in await self._store.doomed():
            await self._remove(job_id)

    async def finish(self) -> None:
        """Wait until what is being removed is gone."""
        await asyncio.gather(*self._removing, return_exceptions=True)

    async def _remove(self, job_id: str) -> None:
        await self._dispatcher.gone(job_id)
        for directory in (self._dispatcher.place(job_id).root, *published(self._settings.model_root, job_id)):
            try:
                await asyncio.to_thread(_remove_tree, directory)
            except OSError as error:  # the next start of the service tries again
                log.warning("not_removed", job=job_id, reason=str(error))
                return
        await self._store.removed(job_id)

    def _page(self, page: Page, state: int) -> pb.ListDistillJobsResponse:
        """As many of the jobs as fit into a message."""
        answer, size, last = pb.ListDistillJobsResponse(), 0, 0
        for number, job in page.jobs:
            one = told(job, self._dispatcher.place(job.id))
            size += one.ByteSize()
            if last and size > self._settings.max_message_bytes // 2:
                break
            answer.jobs.append(one)
            last = number
        if page.more or len(answer.jobs) < len(page.jobs):
            answer.next_page_token = _token(last, state)
        return answer

    async def _find(self, job_id: str) -> Job:
        job = await self._store.get(job_id)
        if job is None:
            raise _unknown(job_id)
        return job

    async def _told(self, job: Job) -> pb.DistillJob:
        return await asyncio.to_thread(told, job, self._dispatcher.place(job.id))

    @contextmanager
    def _watcher(self) -> Iterator[None]:
        if self._closed:
            raise Draining("the distiller is going away; watch again when it is back")
        if self.watchers >= self._settings.max_watchers:
            raise Overloaded("the distiller has all the watchers that it may have", retry_after=_RETRY_AFTER)
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1


def told(job: Job, place: Place) -> pb.DistillJob:
    """A job as the contract has it, with the newest progress from its directory."""
    made = pb.DistillJob(
        id=job.id,
        request_id=job.request_id,
        state=_NUMBERS[job.state],
        spec=ParseDict(json.loads(job.spec), pb.DistillSpec(), ignore_unknown_fields=True),
        progress=progress.newest(place),
        starts=job.starts,
        student_source=job.student,
        int8_source=job.int8,
        figures=dict(job.figures),
    )
    if job.failure:
        made.error.reason, made.error.message = job.failure.reason, job.failure.message
        made.error.log.extend(job.failure.log)
    for name, at_ms in (
        ("created_at", job.created_ms),
        ("started_at", job.started_ms),
        ("finished_at", job.finished_ms),
    ):
        if at_ms:
            getattr(made, name).FromMilliseconds(at_ms)
    return made


def _read(place: Place, offset: int) -> list[tuple[pb.DistillProgress, int]]:
    return list(itertools.islice(place.read_progress(offset), _PIECES))


def _size(place: Place) -> int:
    try:
        return place.progress.stat().st_size
    except OSError:
        return 0


def _report(place: Place, html: bool) -> pb.DistillReport | None:
    text = _bytes(place.report / "report.json", _REPORT_BYTES)
    if not text:
        return None
    page = _bytes(place.report / "report.html", _REPORT_BYTES) if html else b""
    return pb.DistillReport(json=text.decode(errors="replace"), html=page.decode(errors="replace"))


def _bytes(path: Path, most: int) -> bytes:
    """What is in a file; nothing if it is larger, or not there."""
    try:
        return path.read_bytes() if path.stat().st_size <= most else b""
    except OSError:
        return b""


def _remove_tree(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def _token(after: int, state: int) -> str:
    return base64.urlsafe_b64encode(f"{state}.{after}".encode()).decode()


def _after(token: str, state: int) -> int:
    """Where a page begins. Raises: InvalidRequest: no token of ours, or of another filter."""
    if not token:
        return 0
    try:
        of_state, _, after = base64.b64decode(token, altchars=b"-_", validate=True).decode("ascii").partition(".")
        if after.isdecimal() and len(after) < 19 and of_state == str(int(state)):
            return int(after)
    except ValueError:
        pass
    raise InvalidRequest("page_token is none that this method gave for this state", field="page_token")


def _no_student(job: Job) -> LadrError | None:
    """Why a job will have no student as it is; None: it has one, or may have."""
    ends = {"failed": "has failed", "cancelled": "was cancelled"}
    if job.state not in ends:
        return None
    message = f"the job {ends[job.state]}: see `ladr distill get {job.id}`, then resume it"
    return WrongState(message, resource=_named(job.id))


def _named(job_id: str) -> tuple[str, str]:
    return "distill_job", job_id[:MAX_ID_BYTES]


def _unknown(job_id: str) -> LadrError:
    return NotFound("there is no such job", resource=_named(job_id))


def _wrong(job_id: str, refused: Refused) -> LadrError:
    return WrongState(str(refused), resource=_named(job_id))
