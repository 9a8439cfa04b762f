"""What can go wrong in LADR, as exceptions that servers raise and clients catch.

A class fixes the gRPC code and the reason; `ladr.status` packs one into a google.rpc.Status and makes it again from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

import grpc


class LadrError(Exception):
    """An error that a caller can act on. As text it says where it is, too: "training.steps: …".

    Attributes:
        message: one sentence that says what to do; a server puts no prompt, address or path in it.
        field: request field that is wrong, as a proto path ("sampling.top_p"), or "".
        resource: (type, name) of what was not found or is in the way, such as ("model", "chat"), or None.
        retry_after: when it is worth trying again, or None.
        metadata: further facts, strings only.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    reason: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        resource: tuple[str, str] | None = None,
        retry_after: timedelta | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.resource = resource
        self.retry_after = retry_after
        self.metadata = dict(metadata or {})

    def __str__(self) -> str:
        where = self.field.removeprefix("spec.")  # a job's spec is what the caller wrote: fields are named from there
        return f"{where}: {self.message}" if where and where not in self.message else self.message


class InvalidRequest(LadrError):
    """The request is wrong, and would be wrong again; `field` says where."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_REQUEST"


class PromptTooLong(InvalidRequest):
    """Prompt and answer do not fit the model's context."""

    reason = "PROMPT_TOO_LONG"


class NotFound(LadrError):
    """There is no such model, worker or file; `resource` says which."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "NOT_FOUND"

    def __str__(self) -> str:
        text, name = super().__str__(), self.resource[1] if self.resource else ""
        return f"{text}: {name}" if name and name not in text else text


class AlreadyExists(LadrError):
    """The name is in use; `resource` says which."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class NoWorker(LadrError):
    """No worker can take the request now; retry later."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "NO_WORKER"


class Draining(LadrError):
    """This server takes nothing new; ask another."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "DRAINING"


class Unreachable(LadrError):
    """The server does not answer, or the connection to it broke."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNREACHABLE"


class JobsUnavailable(LadrError):
    """The store of the jobs does not answer; retry later. A job that was accepted is not lost by that."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "JOBS_UNAVAILABLE"


class NoJobs(LadrError):
    """This router keeps no jobs; its operator can set router.jobs.store."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "NO_JOBS"


class WrongState(LadrError):
    """What is asked for does not go with the state that it is in."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "WRONG_STATE"


class WorkerLost(LadrError):
    """The worker was lost after the first token: what came so far is good, the rest is not coming."""

    code = grpc.StatusCode.ABORTED
    reason = "WORKER_LOST"


class CannotResume(LadrError):
    """This worker cannot go on with an answer that another began; what came so far is good, the rest is not coming."""

    code = grpc.StatusCode.ABORTED
    reason = "CANNOT_RESUME"


class Overloaded(LadrError):
    """A bound was reached (queue, streams, workers); retry after `retry_after`."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "OVERLOADED"


class TooLate(Overloaded):
    """No worker can give the first token as soon as the request wants it."""

    reason = "TOO_LATE"


class MessageTooLarge(LadrError):
    """The request has more bytes than the server takes."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "MESSAGE_TOO_LARGE"


class DeadlineExceeded(LadrError):
    """The call's deadline passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class Cancelled(LadrError):
    """The call was cancelled by the other side, or by this side's `cancel` or `close`."""

    code = grpc.StatusCode.CANCELLED
    reason = "CANCELLED"


class EngineFailed(LadrError):
    """The engine broke on this request."""

    code = grpc.StatusCode.INTERNAL
    reason = "ENGINE_FAILED"


class Internal(LadrError):
    """A fault of LADR's own; the server's log has it, under the trace id."""

    code = grpc.StatusCode.INTERNAL
    reason = "INTERNAL"


class BrokenStream(LadrError):
    """The events of an answer do not fit together: tokens lost, repeated, or no end. What came before is good."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "BROKEN_STREAM"
