"""Errors on the wire: `LadrError` to google.rpc.Status and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from ladr import errors

DOMAIN = "ladr"
DETAILS_KEY = "grpc-status-details-bin"

_BY_REASON = {c.reason: c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.LadrError)}
# What a bare gRPC status means, when no ErrorInfo came with it (a proxy, a broken connection, gRPC itself).
_BY_CODE: dict[grpc.StatusCode, type[errors.LadrError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.UNAVAILABLE: errors.Unreachable,
    grpc.StatusCode.UNIMPLEMENTED: errors.Unreachable,  # another server answers there
    grpc.StatusCode.ABORTED: errors.WorkerLost,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.CANCELLED: errors.Cancelled,
    grpc.StatusCode.INTERNAL: errors.Internal,
}


def to_status(error: errors.LadrError) -> status_pb2.Status:
    """Pack an error with its details: ErrorInfo always; BadRequest, ResourceInfo and RetryInfo where it has them."""
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code.name), message=error.message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata))
    if error.field:
        bad = error_details_pb2.BadRequest()
        bad.field_violations.add(field=error.field, description=error.message)
        status.details.add().Pack(bad)
    if error.resource:
        kind, name = error.resource
        status.details.add().Pack(error_details_pb2.ResourceInfo(resource_type=kind, resource_name=name))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromTimedelta(error.retry_after)
        status.details.add().Pack(retry)
    return status


def from_rpc(code: grpc.StatusCode, message: str, trailing: Iterable[Any] | None) -> errors.LadrError:
    """Make the error again from a failed call's code, message and trailing metadata.

    Details that cannot be decoded (a proxy's own) count as none.
    """
    status = status_pb2.Status()
    for key, value in trailing or ():
        if key == DETAILS_KEY:
            with contextlib.suppress(DecodeError):
                status.ParseFromString(value)
    field, resource, retry_after, reason, metadata = "", None, None, "", {}
    for packed in status.details:
        if packed.Unpack(info := error_details_pb2.ErrorInfo()) and info.domain == DOMAIN:
            reason, metadata = info.reason, dict(info.metadata)
        elif packed.Unpack(bad := error_details_pb2.BadRequest()) and bad.field_violations:
            field = bad.field_violations[0].field
        elif packed.Unpack(res := error_details_pb2.ResourceInfo()):
            resource = (res.resource_type, res.resource_name)
        elif packed.Unpack(retry := error_details_pb2.RetryInfo()):
            retry_after = _timedelta(retry)
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, errors.LadrError)
    if not reason and code is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in message:
        kind = errors.MessageTooLarge  # gRPC's own bound, on either side, sent or received
    return kind(message, field=field, resource=resource, retry_after=retry_after, metadata=metadata)


def _timedelta(retry: error_details_pb2.RetryInfo) -> timedelta:
    delay: timedelta = retry.retry_delay.ToTimedelta()
    return delay
