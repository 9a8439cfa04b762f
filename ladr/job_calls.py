"""What clients do with durable jobs: the methods of `Client` and of its twin without asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Literal, Unpack

from google.protobuf.timestamp_pb2 import Timestamp

from ladr.exchange import Plain
from ladr.request import RequestOptions, generate_request
from ladr.stream import Stream
from ladr.sync_stream import SyncStream
from ladr.v1 import generations_pb2 as pb

State = Literal["scheduled", "queued", "running", "succeeded", "dead", "cancelled", "expired"]
Watch = Stream[pb.WatchGenerationResponse, pb.WatchGenerationResponse]
SyncWatch = SyncStream[pb.WatchGenerationResponse, pb.WatchGenerationResponse]
_CALL_S = 10.0
_PAGE = 500


def job_request(
    prompt: str = "",
    not_before: datetime | None = None,
    expire_after: timedelta | None = None,
    **options: Unpack[RequestOptions],
) -> pb.SubmitGenerationRequest:
    """A request to be kept, for `submit_generations`. Raises: InvalidRequest, TypeError: as `ladr.request.generate_request`."""
    request = pb.SubmitGenerationRequest(request=generate_request(prompt, options))
    if not_before is not None:
        due = Timestamp()
        due.FromDatetime(not_before)
        request.not_before.CopyFrom(due)
    if expire_after is not None:
        request.expire_after.FromTimedelta(expire_after)
    return request


def state_name(job: pb.Generation) -> str:
    """GENERATION_STATE_QUEUED → "queued"; "unspecified" for one that this client does not know."""
    if job.state not in pb.GenerationState.values():
        return "unspecified"
    return pb.GenerationState.Name(job.state).removeprefix("GENERATION_STATE_").lower()


def _page_request(state: State | None, model: str) -> pb.ListGenerationsRequest:
    number = pb.GenerationState.Value(f"GENERATION_STATE_{state.upper()}") if state else 0
    return pb.ListGenerationsRequest(page_size=_PAGE, state=number, model=model)  # type: ignore[arg-type]  # 0 is the enum's too


class JobCalls:
    """Jobs of an asyncio client."""

    address: str
    _router: Any
    _unary: Any
    _kept: Any

    async def submit_generation(
        self,
        prompt: str = "",
        *,
        not_before: datetime | None = None,
        expire_after: timedelta | None = None,
        timeout: float | None = _CALL_S,
        **options: Unpack[RequestOptions],
    ) -> pb.Generation:
        """Give a request into keeping: it is answered though this client goes away. With a `request_id` it can be repeated.

        Args:
            not_before: it is not begun earlier; a datetime without a zone is UTC.
            expire_after: it is of no use so long after it was accepted.
            options: see ladr.request.RequestOptions; `priority` is batch if left out.
        Raises: AlreadyExists: the request_id belongs to another request. InvalidRequest, Overloaded, JobsUnavailable, NoJobs.
        """
        request = job_request(prompt, not_before, expire_after, **options)
        job: pb.Generation = await self._unary(self._router().SubmitGeneration, request, timeout)
        return job

    async def submit_generations(
        self,
        requests: AsyncIterable[pb.SubmitGenerationRequest] | Iterable[pb.SubmitGenerationRequest],
        *,
        timeout: float | None = None,
    ) -> pb.SubmitGenerationsResponse:
        """Give any number of requests (see `job_request`) into keeping; they are read as fast as the store takes them."""
        answer: pb.SubmitGenerationsResponse = await self._unary(self._router().SubmitGenerations, requests, timeout)
        return answer

    async def get_generation(self, request_id: str, *, timeout: float | None = _CALL_S) -> pb.Generation:
        """A job, with its result once it has one. Raises: NotFound."""
        request = pb.GetGenerationRequest(request_id=request_id)
        job: pb.Generation = await self._unary(self._router().GetGeneration, request, timeout)
        return job

    def watch_generation(
        self, request_id: str, *, attempt: int = 0, offset: int = 0, timeout: float | None = None
    ) -> Watch:
        """A job and its answer as it grows, for `async for`; from token `offset` of `attempt` on, if it is still at that."""
        request = pb.WatchGenerationRequest(request_id=request_id, attempt=attempt, offset=offset)
        call = self._router().WatchGeneration(request, timeout=timeout)
        watch: Watch = self._kept(Stream(call, Plain[pb.WatchGenerationResponse](), self.address))
        return watch

    async def cancel_generation(self, request_id: str, *, timeout: float | None = _CALL_S) -> pb.Generation:
        """Stop a job; one that has ended stays as it is. Raises: NotFound."""
        request = pb.CancelGenerationRequest(request_id=request_id)
        job: pb.Generation = await self._unary(self._router().CancelGeneration, request, timeout)
        return job

    async def requeue_generation(self, request_id: str, *, timeout: float | None = _CALL_S) -> pb.Generation:
        """Give a dead letter its attempts again. Raises: NotFound, WrongState."""
        request = pb.RequeueGenerationRequest(request_id=request_id)
        job: pb.Generation = await self._unary(self._router().RequeueGeneration, request, timeout)
        return job

    async def delete_generation(self, request_id: str, *, timeout: float | None = _CALL_S) -> None:
        """Forget a job that has ended. Raises: NotFound, WrongState."""
        request = pb.DeleteGenerationRequest(request_id=request_id)
        await self._unary(self._router().DeleteGeneration, request, timeout)

    async def generations(
        self, state: State | None = None, model: str = "", *, timeout: float | None = _CALL_S
    ) -> AsyncIterator[pb.Generation]:
        """All jobs in the order of acceptance, without results, for `async for`. `timeout`: seconds a page."""
        request = _page_request(state, model)
        while True:
            page: pb.ListGenerationsResponse = await self._unary(self._router().ListGenerations, request, timeout)
            for job in page.generations:
                yield job
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


class SyncJobCalls:
    """Jobs of a client without asyncio; arguments and errors are those of `JobCalls`."""

    address: str
    _router: Any
    _unary: Any
    _kept: Any

    def submit_generation(
        self,
        prompt: str = "",
        *,
        not_before: datetime | None = None,
        expire_after: timedelta | None = None,
        timeout: float | None = _CALL_S,
        **options: Unpack[RequestOptions],
    ) -> pb.Generation:
        """Give a request into keeping."""
        request = job_request(prompt, not_before, expire_after, **options)
        job: pb.Generation = self._unary(self._router.SubmitGeneration, request, timeout)
        return job

    def submit_generations(
        self, requests: Iterable[pb.SubmitGenerationRequest], *, timeout: float | None = None
    ) -> pb.SubmitGenerationsResponse:
        """Give any number of requests into keeping. They are read on another thread."""
        answer: pb.SubmitGenerationsResponse = self._unary(self._router.SubmitGenerations, iter(requests), timeout)
        return answer

    def get_generation(self, request_id: str, *, timeout: float | None = _CALL_S) -> pb.Generation:
        """A job, with its result once it has one."""
        job: pb.Generation = self._unary(
            self._router.GetGeneration, pb.GetGenerationRequest(request_id=request_id), timeout
        )
        return job

    def watch_generation(
        self, request_id: str, *, attempt: int = 0, offset: int = 0, timeout: float | None = None
    ) -> SyncWatch:
        """A job and its answer as it grows, for `for`."""
        request = pb.WatchGenerationRequest(request_id=request_id, attempt=attempt, offset=offset)
        call = self._router.WatchGeneration(request, timeout=timeout)
        watch: SyncWatch = self._kept(SyncStream(call, Plain[pb.WatchGenerationResponse](), self.address))
        return watch

    def cancel_generation(self, request_id: str, *, timeout: float | None = _CALL_S) -> pb.Generation:
        """Stop a job."""
        request = pb.CancelGenerationRequest(request_id=request_id)
        job: pb.Generation = self._unary(self._router.CancelGeneration, request, timeout)
        return job

    def requeue_generation(self, request_id: str, *, timeout: float | None = _CALL_S) -> pb.Generation:
        """Give a dead letter its attempts again."""
        request = pb.RequeueGenerationRequest(request_id=request_id)
        job: pb.Generation = self._unary(self._router.RequeueGeneration, request, timeout)
        return job

    def delete_generation(self, request_id: str, *, timeout: float | None = _CALL_S) -> None:
        """Forget a job that has ended."""
        self._unary(self._router.DeleteGeneration, pb.DeleteGenerationRequest(request_id=request_id), timeout)

    def generations(
        self, state: State | None = None, model: str = "", *, timeout: float | None = _CALL_S
    ) -> Iterator[pb.Generation]:
        """All jobs in the order of acceptance, without results."""
        request = _page_request(state, model)
        while True:
            page: pb.ListGenerationsResponse = self._unary(self._router.ListGenerations, request, timeout)
            yield from page.generations
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
