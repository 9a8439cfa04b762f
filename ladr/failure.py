"""A failed call as a typed error that says where it failed."""

from __future__ import annotations

import grpc

from ladr.errors import DeadlineExceeded, LadrError, Unreachable
from ladr.status import DETAILS_KEY, from_rpc


def call_failed(error: grpc.RpcError, address: str, begun: bool = False) -> LadrError:
    """The typed error of a call to `address`; where the server said nothing of its own, the message names the address.

    `begun`: a part of the answer had come.
    """
    code, details, trailing = error.code(), error.details() or "", error.trailing_metadata() or ()
    made = from_rpc(code, details, trailing)
    if any(key == DETAILS_KEY for key, _ in trailing):
        return made
    if code is grpc.StatusCode.UNAVAILABLE and begun:
        return Unreachable(f"the server at {address} went away; the answer is cut")
    if code is grpc.StatusCode.UNAVAILABLE:
        why = details.rpartition(": ")[2] if "last error" in details else details
        return Unreachable(f"no answer from {address} ({why}); check the address, and that the server runs there")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{address} had not finished when the timeout passed; give it a longer one")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return LadrError(f"the server at {address} does not know this call ({details}); is it the right LADR service?")
    return made


def not_ready(address: str, waited_s: float, answered: bool) -> LadrError:
    """The error of a server that was not ready in time."""
    if answered:
        return DeadlineExceeded(f"{address} answers, and was not ready within {waited_s:g} s; its log says why")
    return Unreachable(
        f"no answer from {address} within {waited_s:g} s; check the address, and that the server runs there"
    )
