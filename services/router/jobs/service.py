"""Jobs as clients see them: submitted, looked at, watched, stopped. Between the messages of the contract and a store."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from google.protobuf.message import Message
from opentelemetry import trace

from ladr.errors import InvalidRequest, LadrError, NotFound, WrongState
from ladr.request import MAX_ID_BYTES
from ladr.routing.wire import request_head
from ladr.tracing import span_metadata
from ladr.v1 import generation_pb2, generations_pb2
from services.router.jobs.dispatcher import Dispatcher
from services.router.jobs.machine import Cancel, Job, Refused, Requeue, State
from services.router.jobs.store import Draft, Kept, Store
from services.router.watchers import Watchers

MAX_WATCHERS = 1024
MAX_REFUSALS = 100
_BATCH_JOBS, _BATCH_BYTES = 128, 1 << 20  # of a stream of submissions, that are kept in one step
_PIECES = 64  # of an answer, read at once
_POLL_S = (0.05, 0.5)  # between two looks at a job that is watched: shortly after news, and when there is none
_PATIENCE_S = 10.0  # how long a watcher is kept while the store does not answer
_STATES: dict[int, State] = {
    number: name.removeprefix("GENERATION_STATE_").lower()  # type: ignore[misc]  # the names are those of State
    for name, number in generations_pb2.GenerationState.items()
    if number
}
_NUMBERS: dict[State, Any] = {state: number for number, state in _STATES.items()}


class Jobs:
    """What the methods of ladr.v1.Router do with jobs.

    Args: make_id: makes a request_id for a job without one.
    """

    def __init__(self, store: Store, dispatcher: Dispatcher, make_id: Callable[[], str]) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._make_id = make_id
        self._watchers = Watchers(MAX_WATCHERS)

    def close(self) -> None:
        """End the watches: another router goes on with them."""
        self._watchers.close()

    async def submit(self, request: generations_pb2.SubmitGenerationRequest) -> generations_pb2.Generation:
        """Keep a job. Raises: InvalidRequest, AlreadyExists, Overloaded, JobsUnavailable."""
        (kept,) = await self._store.submit([self._draft(request)])
        if isinstance(kept, LadrError):
            raise kept
        self._dispatcher.submitted()
        return _told(kept.job)

    async def submit_all(
        self, requests: AsyncIterator[generations_pb2.SubmitGenerationRequest]
    ) -> generations_pb2.SubmitGenerationsResponse:
        """Keep a stream of jobs, some at a time: no more is read before those are in the store. Raises: JobsUnavailable."""
        answer = generations_pb2.SubmitGenerationsResponse()
        drafts: list[tuple[int, Draft]] = []
        index = size = 0
        async for request in requests:
            try:
                drafts.append((index, self._draft(request)))
                size += request.ByteSize()
            except InvalidRequest as error:
                _refuse(answer, index, request.request_id, error)
            index += 1
            if len(drafts) == _BATCH_JOBS or size > _BATCH_BYTES:
                await self._submit_some(drafts, answer)
                drafts, size = [], 0
        await self._submit_some(drafts, answer)
        return answer

    async def get(self, job_id: str) -> generations_pb2.Generation:
        """A job with its result. Raises: NotFound, JobsUnavailable."""
        pieces: list[bytes] = []
        while True:
            look = await self._store.look(job_id, len(pieces), _PIECES)
            if look is None:
                raise _unknown(job_id)
            job, more = look
            if job.state != "succeeded":
                return _told(job)
            pieces += more
            if len(more) < _PIECES:
                return await self._with_result(job, pieces)

    async def watch(
        self, job_id: str, attempt: int, offset: int
    ) -> AsyncGenerator[generations_pb2.WatchGenerationResponse]:
        """The job and its answer as it grows. Raises: NotFound, Overloaded, Draining, JobsUnavailable."""
        with self._watchers.one():
            view = _View(attempt, offset)
            pause_s, longest_s = _POLL_S
            while True:
                look = await self._patiently(lambda: self._store.look(job_id, view.read, _PIECES))
                if look is None:
                    raise _unknown(job_id)
                job, pieces = look
                news = view.take(job, pieces)
                if view.ended(job, len(pieces)):
                    for message in news:
                        yield message
                    whole = await self.get(job_id)
                    yield generations_pb2.WatchGenerationResponse(generation=whole, attempt=whole.attempts)
                    return
                for message in news:
                    yield message
                if self._watchers.closed:
                    raise self._watchers.leaves()
                if len(pieces) < _PIECES:
                    pause_s = _POLL_S[0] if news else min(2 * pause_s, longest_s)
                    await asyncio.sleep(pause_s)

    async def cancel(self, job_id: str) -> generations_pb2.Generation:
        """Stop a job. Raises: NotFound, JobsUnavailable."""
        job = await self._store.apply(job_id, Cancel())
        if job is None:
            raise _unknown(job_id)
        self._dispatcher.cancelled(job_id)
        return _told(job)

    async def requeue(self, job_id: str) -> generations_pb2.Generation:
        """Try a dead letter again. Raises: NotFound, WrongState, JobsUnavailable."""
        try:
            job = await self._store.apply(job_id, Requeue())
        except Refused as refused:
            raise _wrong(job_id, refused) from None
        if job is None:
            raise _unknown(job_id)
        self._dispatcher.submitted()
        return _told(job)

    async def delete(self, job_id: str) -> None:
        """Forget a job that has ended. Raises: NotFound, WrongState, JobsUnavailable."""
        try:
            there = await self._store.delete(job_id)
        except Refused as refused:
            raise _wrong(job_id, refused) from None
        if not there:
            raise _unknown(job_id)

    async def page(self, request: generations_pb2.ListGenerationsRequest) -> generations_pb2.ListGenerationsResponse:
        """A page of jobs. Raises: InvalidRequest, JobsUnavailable."""
        if not 0 <= request.page_size <= 1000:
            raise InvalidRequest("page_size must be 1 to 1000, or 0 for 100", field="page_size")
        if request.state and request.state not in _STATES:
            raise InvalidRequest("there is no such state", field="state")
        if request.page_token and not (request.page_token.isascii() and request.page_token.isdecimal()):
            raise InvalidRequest("page_token is none that this method gave", field="page_token")
        after = min(int(request.page_token or 0), 2**53)
        page = await self._store.page(_STATES.get(request.state), after, request.page_size or 100)
        return generations_pb2.ListGenerationsResponse(
            generations=[_told(job) for job in page.jobs if request.model in ("", job.model)],
            next_page_token=str(page.after) if page.after else "",
        )

    def _draft(self, request: generations_pb2.SubmitGenerationRequest) -> Draft:
        """A job of what was asked. Raises: InvalidRequest."""
        asked = generation_pb2.GenerateRequest()
        asked.CopyFrom(request.request)
        for name in ("first_token_within", "continuation"):
            if asked.HasField(name):
                raise InvalidRequest(f"a job has no {name}; leave it out", field=f"request.{name}")
        if asked.attempt:
            raise InvalidRequest("only a router sets the attempt; leave it out", field="request.attempt")
        if bool(asked.prompt) == bool(asked.messages):
            raise InvalidRequest("give a prompt or messages, one of the two", field="request.prompt")
        if len(asked.model.encode()) > MAX_ID_BYTES:
            raise InvalidRequest(f"model may have {MAX_ID_BYTES} bytes at most", field="request.model")
        priority = request.priority or asked.priority or generation_pb2.PRIORITY_BATCH
        if priority not in generation_pb2.Priority.values():
            raise InvalidRequest("there is no such priority", field="priority")
        asked.request_id = request.request_id or asked.request_id or self._make_id()
        if len(asked.request_id.encode()) > MAX_ID_BYTES:
            raise InvalidRequest(f"request_id may have {MAX_ID_BYTES} bytes at most", field="request_id")
        asked.priority = priority
        raw = asked.SerializeToString(deterministic=True)
        request_head(raw)
        now_ms = self._store.now_ms()
        due_ms = request.not_before.ToMilliseconds() if request.HasField("not_before") else 0
        expire_ms = request.expire_after.ToMilliseconds() if request.HasField("expire_after") else 0
        if request.HasField("expire_after") and expire_ms <= 0:
            raise InvalidRequest("expire_after must be over 0", field="expire_after")
        job = Job(
            id=asked.request_id,
            digest=_digest(raw, request.not_before, request.expire_after),
            model=asked.model,
            priority=priority,
            created_ms=now_ms,
            parent=dict(span_metadata(trace.get_current_span())).get("traceparent", ""),
            state="scheduled" if due_ms > now_ms else "queued",
            due_ms=due_ms,
            expires_ms=now_ms + expire_ms if expire_ms else 0,
        )
        return Draft(job, raw)

    async def _submit_some(
        self, drafts: list[tuple[int, Draft]], answer: generations_pb2.SubmitGenerationsResponse
    ) -> None:
        if not drafts:
            return
        for (index, draft), kept in zip(drafts, await self._store.submit([draft for _, draft in drafts]), strict=True):
            if isinstance(kept, Kept):
                answer.accepted += kept.new
                answer.existing += not kept.new
            else:
                _refuse(answer, index, draft.job.id, kept)
        self._dispatcher.submitted()

    async def _with_result(self, job: Job, pieces: list[bytes]) -> generations_pb2.Generation:
        told = _told(job)
        told.result.ParseFromString(await self._store.result(job.id))
        deltas = [delta for piece in pieces for delta in _chunk(piece).deltas]
        told.result.text = "".join(delta.text for delta in deltas)
        told.result.token_ids.extend(token_id for delta in deltas for token_id in delta.token_ids)
        return told

    async def _patiently(self, look: Callable[[], Any]) -> Any:
        """Look, for a while also while the store does not answer. Raises: JobsUnavailable."""
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return await look()
            except LadrError:
                if time.monotonic() > until_s or self._watchers.closed:
                    raise
                await asyncio.sleep(_POLL_S[1])


class _View:
    """What a watcher has seen: pieces of one attempt, and the newest state.

    Args: attempt, offset: what it had from another router; attempt 0: whichever there is.
    """

    def __init__(self, attempt: int, offset: int) -> None:
        self._attempt = attempt
        self._offset = offset  # tokens that it has
        self._seen: tuple[State, int] | None = None
        self.read = 0  # pieces that are done with

    def take(self, job: Job, pieces: list[bytes]) -> list[generations_pb2.WatchGenerationResponse]:
        """What is new to it."""
        news: list[generations_pb2.WatchGenerationResponse] = []
        if self._attempt and self._attempt != job.attempts:
            self._offset = self.read = 0
            pieces = pieces if self._seen is None else []  # they were read from where the last attempt's were
        self._attempt = job.attempts
        if self._seen != (job.state, job.attempts):
            self._seen = (job.state, job.attempts)
            if job.live:  # how it ended is told last
                news.append(generations_pb2.WatchGenerationResponse(generation=_told(job), attempt=job.attempts))
        for piece in pieces:
            chunk = _chunk(piece)
            if chunk.attempt != job.attempts:
                break  # of an attempt that did not count any more
            self.read += 1
            for delta in chunk.deltas:
                if delta.offset + delta.token_count > self._offset or delta.offset >= self._offset:
                    self._offset = delta.offset + delta.token_count
                    news.append(generations_pb2.WatchGenerationResponse(delta=delta, attempt=job.attempts))
        return news

    def ended(self, job: Job, pieces: int) -> bool:
        """Whether there is nothing more to come than the job's last word."""
        return not job.live and pieces < _PIECES and (job.state != "succeeded" or self.read > 0)


def _told(job: Job) -> generations_pb2.Generation:
    """A job as the contract has it, without its result."""
    priority: Any = job.priority
    told = generations_pb2.Generation(
        request_id=job.id,
        state=_NUMBERS[job.state],
        model=job.model,
        priority=priority,
        attempts=job.attempts,
        redeliveries=job.redeliveries,
    )
    told.created_at.FromMilliseconds(job.created_ms)
    for name, at_ms in (
        ("started_at", job.started_ms),
        ("finished_at", job.finished_ms),
        ("not_before", job.due_ms),
        ("expires_at", job.expires_ms),
    ):
        if at_ms:
            getattr(told, name).FromMilliseconds(at_ms)
    if job.error[0]:
        told.error.reason, told.error.message = job.error
    return told


def _chunk(piece: bytes) -> generations_pb2.GenerationChunk:
    return generations_pb2.GenerationChunk.FromString(piece)


def _digest(raw: bytes, *more: Message) -> str:
    """What tells a request from another under the same name."""
    found = hashlib.sha256(raw)
    for message in more:
        part = message.SerializeToString(deterministic=True)
        found.update(len(part).to_bytes(4, "big") + part)
    return found.hexdigest()


def _refuse(answer: generations_pb2.SubmitGenerationsResponse, index: int, request_id: str, error: LadrError) -> None:
    answer.refused += 1
    if len(answer.refusals) < MAX_REFUSALS:
        refusal = answer.refusals.add(index=index, request_id=request_id[:MAX_ID_BYTES])
        refusal.error.reason, refusal.error.message = error.reason, error.message


def _unknown(job_id: str) -> NotFound:
    return NotFound("there is no such job", resource=("generation", job_id[:MAX_ID_BYTES]))


def _wrong(job_id: str, refused: Refused) -> WrongState:
    return WrongState(str(refused), resource=("generation", job_id[:MAX_ID_BYTES]))
