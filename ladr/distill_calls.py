"""What clients do with distillation jobs: the methods of `Client` and of its twin without asyncio, at a distiller's address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Literal

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message_factory import GetMessageClass

from ladr.errors import InvalidRequest
from ladr.exchange import Plain
from ladr.stream import Stream
from ladr.sync_stream import SyncStream
from ladr.v1 import distiller_pb2 as pb

DistillState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Spec = pb.DistillSpec | Mapping[str, Any] | None
RolloutState = Literal["loading", "running", "succeeded", "rolled_back", "cancelled"]
RolloutWatch = Stream[pb.Rollout, pb.Rollout]
SyncRolloutWatch = SyncStream[pb.Rollout, pb.Rollout]
DistillWatch = Stream[pb.WatchDistillJobResponse, pb.WatchDistillJobResponse]
SyncDistillWatch = SyncStream[pb.WatchDistillJobResponse, pb.WatchDistillJobResponse]
_UNFIT = (ParseError, AttributeError, TypeError, ValueError)
_KINDS = {  # what a field takes: one, several, the greatest whole number
    FieldDescriptor.CPPTYPE_UINT32: ("a whole number", "whole numbers", (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: ("a whole number", "whole numbers", (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: ("a number", "numbers", 0),
    FieldDescriptor.CPPTYPE_BOOL: ("true or false", "true or false", 0),
    FieldDescriptor.CPPTYPE_STRING: ("text", "texts", 0),
}
_CALL_S = 10.0
_DELETE_S = 60.0  # many files may have to go
_PUBLISH_S = 30.0  # the router is asked about the fleet
_PAGE = 200


def distill_spec(values: Mapping[str, Any]) -> pb.DistillSpec:
    """A spec from plain values by the contract's names: {"student": {"layers": 20}}.

    Raises: InvalidRequest: it has others, or a value of a wrong kind; names the first.
    """
    try:
        return ParseDict(dict(values), pb.DistillSpec())
    except _UNFIT as error:
        raise _wrong(values, pb.DistillSpec, "spec") or InvalidRequest(f"not a spec: {error}", field="spec") from None


def _wrong(values: Any, message: Any, above: str) -> InvalidRequest | None:
    """What is the first wrong thing in what a message was to be made of."""
    kind: Descriptor = message.DESCRIPTOR
    if not isinstance(values, Mapping):
        return InvalidRequest(f"give a mapping with {', '.join(kind.fields_by_name)}", field=above)
    for key, value in values.items():
        field, where = kind.fields_by_name.get(key), f"{above}.{key}"
        try:
            ParseDict({key: value}, message())
        except _UNFIT:
            if field is None:
                return InvalidRequest(
                    f"there is no such field; known here: {', '.join(kind.fields_by_name)}", field=where
                )
            if field.message_type is not None:
                return _wrong(value, GetMessageClass(field.message_type), where)
            return InvalidRequest(f"give {_wanted(field, value)}, not {str(value)[:64]!r}", field=where)
    return None


def _wanted(field: FieldDescriptor, value: Any) -> str:
    """What a field takes."""
    one, several, most = _KINDS[field.cpp_type]
    if field.is_repeated:
        return f"a list of {several}"
    return f"0 to {most}" if most and isinstance(value, int) else one


def distill_state(job: pb.DistillJob) -> str:
    """DISTILL_STATE_QUEUED → "queued"; "unspecified" for one that this client does not know."""
    if job.state not in pb.DistillState.values():
        return "unspecified"
    return pb.DistillState.Name(job.state).removeprefix("DISTILL_STATE_").lower()


def rollout_state(rollout: pb.Rollout) -> str:
    """ROLLOUT_STATE_RUNNING → "running"; "unspecified" for one that this client does not know."""
    if rollout.state not in pb.RolloutState.values():
        return "unspecified"
    return pb.RolloutState.Name(rollout.state).removeprefix("ROLLOUT_STATE_").lower()


def _create(spec: Spec, request_id: str) -> pb.CreateDistillJobRequest:
    whole = spec if isinstance(spec, pb.DistillSpec) else distill_spec(spec or {})
    return pb.CreateDistillJobRequest(spec=whole, request_id=request_id)


def _page_request(state: DistillState | None) -> pb.ListDistillJobsRequest:
    number = pb.DistillState.Value(f"DISTILL_STATE_{state.upper()}") if state else 0
    return pb.ListDistillJobsRequest(page_size=_PAGE, state=number)  # type: ignore[arg-type]  # 0 is the enum's too


class DistillCalls:
    """Distillation jobs of an asyncio client."""

    address: str
    _distiller: Any
    _unary: Any
    _kept: Any

    async def create_distill_job(
        self, spec: Spec = None, *, request_id: str = "", timeout: float | None = _CALL_S
    ) -> pb.DistillJob:
        """Give a job: it goes on though this client goes away. With a `request_id` the call can be repeated.

        Args: spec: what to do, as a message or as plain values (see `distill_spec`); what is left out has its default.
        Raises: InvalidRequest, AlreadyExists: the request_id belongs to another spec. Overloaded, JobsUnavailable.
        """
        job: pb.DistillJob = await self._unary(self._distiller().CreateDistillJob, _create(spec, request_id), timeout)
        return job

    async def get_distill_job(self, job_id: str, *, timeout: float | None = _CALL_S) -> pb.DistillJob:
        """A job with its newest progress. Raises: NotFound."""
        request = pb.GetDistillJobRequest(id=job_id)
        job: pb.DistillJob = await self._unary(self._distiller().GetDistillJob, request, timeout)
        return job

    async def distill_jobs(
        self, state: DistillState | None = None, *, timeout: float | None = _CALL_S
    ) -> AsyncIterator[pb.DistillJob]:
        """All jobs in the order in which they were made, for `async for`. `timeout`: seconds a page."""
        request = _page_request(state)
        while True:
            page: pb.ListDistillJobsResponse = await self._unary(self._distiller().ListDistillJobs, request, timeout)
            for job in page.jobs:
                yield job
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def watch_distill_job(self, job_id: str, *, from_start: bool = False, timeout: float | None = None) -> DistillWatch:
        """A job, then its progress, then the job as it ended, for `async for`. `from_start`: what there was before, too."""
        request = pb.WatchDistillJobRequest(id=job_id, from_start=from_start)
        call = self._distiller().WatchDistillJob(request, timeout=timeout)
        watch: DistillWatch = self._kept(Stream(call, Plain[pb.WatchDistillJobResponse](), self.address))
        return watch

    async def cancel_distill_job(self, job_id: str, *, timeout: float | None = _CALL_S) -> pb.DistillJob:
        """Stop a job; one that has ended stays as it is. Raises: NotFound."""
        request = pb.CancelDistillJobRequest(id=job_id)
        job: pb.DistillJob = await self._unary(self._distiller().CancelDistillJob, request, timeout)
        return job

    async def resume_distill_job(self, job_id: str, *, timeout: float | None = _CALL_S) -> pb.DistillJob:
        """Go on with a job that failed or was cancelled, from its last checkpoint. Raises: NotFound, WrongState, Overloaded."""
        request = pb.ResumeDistillJobRequest(id=job_id)
        job: pb.DistillJob = await self._unary(self._distiller().ResumeDistillJob, request, timeout)
        return job

    async def delete_distill_job(self, job_id: str, *, timeout: float | None = _DELETE_S) -> None:
        """Forget a job that has ended, with its files and its student. Raises: NotFound, WrongState."""
        await self._unary(self._distiller().DeleteDistillJob, pb.DeleteDistillJobRequest(id=job_id), timeout)

    async def get_distill_report(
        self, job_id: str, *, html: bool = False, timeout: float | None = _CALL_S
    ) -> pb.DistillReport:
        """What was measured of a job's student; `html`: as a page, too. Raises: NotFound, WrongState: there is none yet."""
        request = pb.GetDistillReportRequest(id=job_id, html=html)
        report: pb.DistillReport = await self._unary(self._distiller().GetDistillReport, request, timeout)
        return report

    async def publish_student(
        self, request: pb.PublishStudentRequest, *, timeout: float | None = _PUBLISH_S
    ) -> pb.Rollout:
        """Put the student of a job that has succeeded into service, stage by stage; it goes on though this client goes away.

        Raises: InvalidRequest, NotFound, WrongState (there is no student yet, or none that is good enough; the service knows no
        router), AlreadyExists (the name is being rolled out), Overloaded, Unreachable.
        """
        rollout: pb.Rollout = await self._unary(self._distiller().PublishStudent, request, timeout)
        return rollout

    async def get_rollout(self, rollout_id: str, *, timeout: float | None = _CALL_S) -> pb.Rollout:
        """A roll-out as it is now. Raises: NotFound."""
        request = pb.GetRolloutRequest(id=rollout_id)
        rollout: pb.Rollout = await self._unary(self._distiller().GetRollout, request, timeout)
        return rollout

    async def rollouts(self, *, timeout: float | None = _CALL_S) -> list[pb.Rollout]:
        """All roll-outs, newest first."""
        answer: pb.ListRolloutsResponse = await self._unary(
            self._distiller().ListRollouts, pb.ListRolloutsRequest(), timeout
        )
        return list(answer.rollouts)

    def watch_rollout(self, rollout_id: str, *, timeout: float | None = None) -> RolloutWatch:
        """A roll-out now, then each change of it, until it has ended, for `async for`."""
        call = self._distiller().WatchRollout(pb.WatchRolloutRequest(id=rollout_id), timeout=timeout)
        watch: RolloutWatch = self._kept(Stream(call, Plain[pb.Rollout](), self.address))
        return watch

    async def cancel_rollout(self, rollout_id: str, *, timeout: float | None = _CALL_S) -> pb.Rollout:
        """Take a student back: the others have all the requests again. One that has ended stays as it is. Raises: NotFound."""
        request = pb.CancelRolloutRequest(id=rollout_id)
        rollout: pb.Rollout = await self._unary(self._distiller().CancelRollout, request, timeout)
        return rollout


class SyncDistillCalls:
    """Distillation jobs of a client without asyncio; arguments and errors are those of `DistillCalls`."""

    address: str
    _distiller: Any
    _unary: Any
    _kept: Any
    _check_open: Any

    def create_distill_job(
        self, spec: Spec = None, *, request_id: str = "", timeout: float | None = _CALL_S
    ) -> pb.DistillJob:
        """Give a job."""
        job: pb.DistillJob = self._unary(self._distiller.CreateDistillJob, _create(spec, request_id), timeout)
        return job

    def get_distill_job(self, job_id: str, *, timeout: float | None = _CALL_S) -> pb.DistillJob:
        """A job with its newest progress."""
        job: pb.DistillJob = self._unary(self._distiller.GetDistillJob, pb.GetDistillJobRequest(id=job_id), timeout)
        return job

    def distill_jobs(
        self, state: DistillState | None = None, *, timeout: float | None = _CALL_S
    ) -> Iterator[pb.DistillJob]:
        """All jobs in the order in which they were made."""
        request = _page_request(state)
        while True:
            page: pb.ListDistillJobsResponse = self._unary(self._distiller.ListDistillJobs, request, timeout)
            yield from page.jobs
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def watch_distill_job(
        self, job_id: str, *, from_start: bool = False, timeout: float | None = None
    ) -> SyncDistillWatch:
        """A job, then its progress, then the job as it ended, for `for`."""
        self._check_open()
        request = pb.WatchDistillJobRequest(id=job_id, from_start=from_start)
        call = self._distiller.WatchDistillJob(request, timeout=timeout)
        watch: SyncDistillWatch = self._kept(SyncStream(call, Plain[pb.WatchDistillJobResponse](), self.address))
        return watch

    def cancel_distill_job(self, job_id: str, *, timeout: float | None = _CALL_S) -> pb.DistillJob:
        """Stop a job."""
        job: pb.DistillJob = self._unary(
            self._distiller.CancelDistillJob, pb.CancelDistillJobRequest(id=job_id), timeout
        )
        return job

    def resume_distill_job(self, job_id: str, *, timeout: float | None = _CALL_S) -> pb.DistillJob:
        """Go on with a job that failed or was cancelled."""
        job: pb.DistillJob = self._unary(
            self._distiller.ResumeDistillJob, pb.ResumeDistillJobRequest(id=job_id), timeout
        )
        return job

    def delete_distill_job(self, job_id: str, *, timeout: float | None = _DELETE_S) -> None:
        """Forget a job that has ended."""
        self._unary(self._distiller.DeleteDistillJob, pb.DeleteDistillJobRequest(id=job_id), timeout)

    def get_distill_report(
        self, job_id: str, *, html: bool = False, timeout: float | None = _CALL_S
    ) -> pb.DistillReport:
        """What was measured of a job's student; `html`: as a page, too."""
        report: pb.DistillReport = self._unary(
            self._distiller.GetDistillReport, pb.GetDistillReportRequest(id=job_id, html=html), timeout
        )
        return report

    def publish_student(self, request: pb.PublishStudentRequest, *, timeout: float | None = _PUBLISH_S) -> pb.Rollout:
        """Put the student of a job into service, stage by stage."""
        rollout: pb.Rollout = self._unary(self._distiller.PublishStudent, request, timeout)
        return rollout

    def get_rollout(self, rollout_id: str, *, timeout: float | None = _CALL_S) -> pb.Rollout:
        """A roll-out as it is now."""
        rollout: pb.Rollout = self._unary(self._distiller.GetRollout, pb.GetRolloutRequest(id=rollout_id), timeout)
        return rollout

    def rollouts(self, *, timeout: float | None = _CALL_S) -> list[pb.Rollout]:
        """All roll-outs, newest first."""
        answer: pb.ListRolloutsResponse = self._unary(self._distiller.ListRollouts, pb.ListRolloutsRequest(), timeout)
        return list(answer.rollouts)

    def watch_rollout(self, rollout_id: str, *, timeout: float | None = None) -> SyncRolloutWatch:
        """A roll-out now, then each change of it, until it has ended, for `for`."""
        self._check_open()
        call = self._distiller.WatchRollout(pb.WatchRolloutRequest(id=rollout_id), timeout=timeout)
        watch: SyncRolloutWatch = self._kept(SyncStream(call, Plain[pb.Rollout](), self.address))
        return watch

    def cancel_rollout(self, rollout_id: str, *, timeout: float | None = _CALL_S) -> pb.Rollout:
        """Take a student back."""
        rollout: pb.Rollout = self._unary(
            self._distiller.CancelRollout, pb.CancelRolloutRequest(id=rollout_id), timeout
        )
        return rollout
