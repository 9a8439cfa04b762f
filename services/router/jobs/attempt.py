"""One attempt at a job: the request goes through the router, the answer into the store, and the lease is renewed beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from opentelemetry import trace
from opentelemetry.context import Context

from ladr.config import JobsSettings
from ladr.errors import Draining, InvalidRequest, JobsUnavailable, LadrError, NoWorker, Overloaded
from ladr.routing.router import Router
from ladr.routing.wire import Event, event_of
from ladr.v1.generation_pb2 import GenerateResponse
from ladr.v1.generations_pb2 import GenerationChunk, GenerationResult
from services.common.telemetry import context_of, tracer
from services.router.jobs import machine
from services.router.jobs.machine import Fail, GiveBack, Stale, Succeed
from services.router.jobs.metrics import JobsMetrics
from services.router.jobs.store import Store, Taken

T = TypeVar("T")
_FLUSH_S = 0.1  # how long a token may wait for company, unless it is an answer's first
_FLUSH_DELTAS = 64
_LOOK_S = 1.0  # how often to look whether somebody cancelled it elsewhere
_STORE_PAUSE_S = (0.05, 1.0)  # first and longest wait before the store is asked again
_NOBODY_PAUSE = timedelta(seconds=1)
_FAILED_PAUSE_S = (1.0, 60.0)  # first and longest pause before the next attempt at a job
# Nobody has begun to work on it: no fault of the job's, and a job that kills its workers does not hide behind these.
_EXCUSED = (NoWorker, Overloaded, Draining)


@dataclass(eq=False)
class Attempt:
    """Runs a job that this router has taken, once."""

    store: Store
    router: Router
    settings: JobsSettings
    metrics: JobsMetrics
    taken: Taken
    begun: bool = False  # a worker has it
    postponed: bool = False  # nobody had room for it

    async def run(self) -> None:
        """Until the job has ended, is to be tried again, or is no more ours. Never raises but when it is cancelled."""
        job = self.taken.job
        span = tracer.start_span(
            "job attempt",
            context=Context(),
            links=_links(job.parent),
            attributes={"ladr.request_id": job.id, "ladr.job.attempt": job.attempts},
        )
        with trace.use_span(span, end_on_exit=True):
            work = asyncio.create_task(self._work())
            lease = asyncio.create_task(self._keep_lease())
            try:
                await asyncio.wait({work, lease}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    self.metrics.ended(job, "stale")
            finally:
                for task in (work, lease):
                    task.cancel()
                await asyncio.gather(work, lease, return_exceptions=True)
            for task in (work, lease):
                if not task.cancelled() and (broken := task.exception()):
                    raise broken

    async def _work(self) -> None:
        job = self.taken.job
        try:
            event = await self._answer()
            await self._patiently(lambda: self.store.apply(job.id, event))
        except Stale:
            self.metrics.ended(job, "stale")
        else:
            self.metrics.ended(job, _OUTCOMES[type(event)], event.error[0] if isinstance(event, Fail) else "")

    async def _answer(self) -> Succeed | Fail | GiveBack:
        """Get the answer, and keep it in pieces; gives what became of it. Raises: Stale."""
        try:
            if not self._has_room():
                raise NoWorker("its workers are busy", retry_after=_NOBODY_PAUSE)
            return await self._stream()
        except LadrError as error:
            return self._failed(error)

    def _has_room(self) -> bool:
        """Whether a worker can begin with it at once. Raises: NotFound, NoWorker."""
        model = self.router.served(self.taken.job.model)
        return any(row.depth < row.slots for row in self.router.board.eligible(model, time.monotonic()))

    async def _stream(self) -> Succeed:
        job, chunks, flushed_s = self.taken.job, 0, float("-inf")
        held: list[bytes] = []
        result = GenerationResult()
        async with aclosing(self.router.generate(self.taken.request, self._timeout_s())) as messages:
            async for message in messages:
                match event_of(message):
                    case Event.STARTED:
                        self.begun = True
                        started = GenerateResponse.FromString(message).started
                        result.worker_id, result.model = started.worker_id, started.model
                    case Event.FINISHED:
                        result.finished.CopyFrom(GenerateResponse.FromString(message).finished)
                    case Event.DELTA:
                        held.append(message)
                        if time.monotonic() - flushed_s > _FLUSH_S or len(held) >= _FLUSH_DELTAS:
                            await self._append(chunks, self._chunk(held))
                            chunks, flushed_s = chunks + 1, time.monotonic()
                            held.clear()
        return Succeed(job.token, chunks + 1, self._chunk(held), result.SerializeToString())

    def _timeout_s(self) -> float:
        seconds = self.settings.attempt_timeout.total_seconds()
        if self.taken.job.expires_ms:
            seconds = min(seconds, (self.taken.job.expires_ms - self.store.now_ms()) / 1000)
        return max(seconds, 0.001)

    def _chunk(self, deltas: list[bytes]) -> bytes:
        return GenerationChunk(attempt=self.taken.job.attempts).SerializeToString() + b"".join(deltas)

    async def _append(self, index: int, chunk: bytes) -> None:
        await self._patiently(lambda: self.store.append(self.taken.job.id, self.taken.job.token, index, chunk))

    def _failed(self, error: LadrError) -> Fail | GiveBack:
        job = self.taken.job
        if isinstance(error, _EXCUSED) and not self.begun:
            self.postponed = True
            pause = min(error.retry_after or _NOBODY_PAUSE, 10 * _NOBODY_PAUSE)
            return GiveBack(job.token, int(pause.total_seconds() * 1000))
        first_s, longest_s = _FAILED_PAUSE_S
        pause_s = min(first_s * 2 ** (job.attempts - job.excused - 1), longest_s)
        return Fail(
            job.token, (error.reason, error.message), int(pause_s * 1000), final=isinstance(error, InvalidRequest)
        )

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """A step of the store, again and again until there is an answer. Steps are such that a second time does no harm."""
        pause_s, longest_s = _STORE_PAUSE_S
        while True:
            try:
                return await step()
            except (JobsUnavailable, Overloaded):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)

    async def _keep_lease(self) -> None:
        """Renew the lease for as long as the attempt counts; a store that does not answer ends nothing."""
        job = self.taken.job
        beat_s = self.settings.lease.total_seconds() / 3
        beaten_s = time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, min(_LOOK_S, beaten_s + beat_s - time.monotonic())))
            asked_s = time.monotonic()
            with suppress(JobsUnavailable, Overloaded):
                if asked_s >= beaten_s + beat_s:
                    counts = await self.store.beat(job.id, job.token)
                    beaten_s = asked_s
                else:
                    now = await self.store.get(job.id)
                    counts = now is not None and now.token == job.token
                if not counts:
                    return


_OUTCOMES: dict[type[machine.Event], str] = {Succeed: "succeeded", Fail: "failed", GiveBack: "given_back"}


def _links(parent: str) -> list[trace.Link]:
    """To the span in which the job was submitted."""
    if not parent:
        return []
    return [trace.Link(trace.get_current_span(context_of([("traceparent", parent)])).get_span_context())]
