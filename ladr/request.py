"""A GenerateRequest from plain arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

from ladr.errors import InvalidRequest
from ladr.v1 import generation_pb2 as pb

_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "seed", "logprobs")
_PLAIN = ("model", "raw", "session_id", "request_id", "fairness_key")


MAX_ID_BYTES = 128
EDGE_LATENCY = "ladr-edge-latency-ms"  # metadata: how long the client's own way to the router takes, as it measures it


def check_ids(request: pb.GenerateRequest) -> None:
    """What routers and workers refuse of a request's names. Raises: InvalidRequest: one is too long."""
    for name in ("session_id", "request_id", "fairness_key"):
        if len(getattr(request, name).encode()) > MAX_ID_BYTES:
            raise InvalidRequest(f"{name} may have {MAX_ID_BYTES} bytes at most", field=name)


def edge_metadata(edge_latency: float | None) -> tuple[tuple[str, str], ...]:
    """Metadata that tells of the client's own way to the router, in seconds; none if it is not known."""
    return ((EDGE_LATENCY, f"{edge_latency * 1000:.3f}"),) if edge_latency else ()


class RequestOptions(TypedDict, total=False):
    """What a request may say beside its prompt. An option left out, or None, takes the server's default.

    Keys:
        messages: a chat, oldest first, each with `role` (system, user, assistant, tool) and `content`; not beside a prompt.
        model: served name or alias; the router's default model if left out.
        max_tokens: most tokens to generate, from 1.
        temperature: 0 (greedy) to 2.
        top_p: nucleus mass, over 0 up to 1.
        top_k: keep the k most likely tokens, 1 to 1000.
        stop: strings that end the answer, at most 16; one string is taken as a list of one.
        seed: of the sampler.
        logprobs: log-probabilities of each token and of this many alternatives, 0 to 20.
        raw: the prompt goes to the model as it is, without the chat template.
        priority: which requests give way when there is not enough room.
        session_id: requests of one session may be kept on one worker; at most 128 bytes.
        request_id: the caller's name for this request; at most 128 bytes.
        fairness_key: whose request this is, where a router shares fairly; at most 128 bytes.
        first_token_within: seconds after which a first token is of no use; a request that cannot make it is turned away.
    """

    messages: Iterable[Mapping[str, str]]
    model: str
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    stop: str | Sequence[str]
    seed: int | None
    logprobs: int | None
    raw: bool
    priority: Literal["high", "normal", "batch"]
    session_id: str
    request_id: str
    fairness_key: str
    first_token_within: float | None


def generate_request(prompt: str, options: RequestOptions) -> pb.GenerateRequest:
    """Build the message; what it says is judged by the server.

    Raises: InvalidRequest: a value that the message cannot hold, such as a negative max_tokens; `field` says which.
        TypeError: an option that does not exist.
    """
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    request = pb.GenerateRequest()
    if prompt:
        _set(request, "prompt", prompt, "prompt")
    for name in _PLAIN:
        if name in given:
            _set(request, name, given.pop(name), name)
    for name in _SAMPLING:
        if name in given:
            _set(request.sampling, name, given.pop(name), f"sampling.{name}")
    stop = given.pop("stop", ())
    _extend(request.sampling.stop, [stop] if isinstance(stop, str) else stop)
    for index, message in enumerate(given.pop("messages", ())):
        request.messages.append(_message(message, f"messages[{index}]"))
    if "priority" in given:
        request.priority = _priority(given.pop("priority"))
    if "first_token_within" in given:
        _within(request, given.pop("first_token_within"))
    if given:
        raise TypeError(f"no such option: {', '.join(sorted(given))}")
    return request


def _set(message: Any, name: str, value: Any, field: str) -> None:
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{field}: {error}", field=field) from None


def _within(request: pb.GenerateRequest, seconds: Any) -> None:
    try:
        request.first_token_within.FromTimedelta(timedelta(seconds=seconds))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"first_token_within: {error}", field="first_token_within") from None


def _extend(stops: Any, values: Iterable[str]) -> None:
    try:
        stops.extend(values)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"sampling.stop: {error}", field="sampling.stop") from None


def _message(message: Mapping[str, str], field: str) -> pb.ChatMessage:
    try:
        return pb.ChatMessage(role=message["role"], content=message["content"])
    except (KeyError, TypeError, ValueError):
        raise InvalidRequest(f"{field}: give it a role and a content, both text", field=field) from None


def _priority(name: str) -> Any:
    try:
        return pb.Priority.Value(f"PRIORITY_{str(name).upper()}")
    except ValueError:
        raise InvalidRequest("priority: give high, normal or batch", field="priority") from None
