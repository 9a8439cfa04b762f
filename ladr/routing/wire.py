"""What a router reads of messages without decoding their text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from google.protobuf.message import DecodeError

from ladr.errors import InvalidRequest
from ladr.request import check_ids
from ladr.routing.policy import PREFIX_BLOCK_TOKENS
from ladr.v1 import generation_pb2

MAX_CHAT_MESSAGES = 4096
BYTES_PER_TOKEN = 4  # about
BLOCK_BYTES = PREFIX_BLOCK_TOKENS * BYTES_PER_TOKEN
MAX_BLOCKS = 128
DEFAULT_ANSWER_TOKENS = 512  # max_tokens where a request gives none, as in generation.proto
_PROMPT, _MESSAGES = 2, 3  # field numbers of GenerateRequest: these may be large, so they are not decoded
_MAX_FIELDS = MAX_CHAT_MESSAGES + 256
_MALFORMED = "the request is not a ladr.v1.GenerateRequest"


@dataclass(frozen=True, slots=True)
class Head:
    """What a router needs to know of a request.

    Attributes:
        prompt_tokens: of prompt and messages together, about.
        max_tokens: most tokens of the answer.
        prefix: hashes of the prompt's leading blocks, each of all up to there; good in this process alone.
        first_token_within_s: from arrival, or None.
        logprobs: the client asked for log-probabilities.
    """

    model: str = ""
    request_id: str = ""
    session: str = ""
    fairness_key: str = ""
    priority: int = generation_pb2.PRIORITY_NORMAL
    prompt_tokens: int = 0
    max_tokens: int = DEFAULT_ANSWER_TOKENS
    prefix: tuple[int, ...] = ()
    first_token_within_s: float | None = None
    logprobs: bool = False


class Event(IntEnum):
    """The oneof's field numbers in ladr/v1/generation.proto; OTHER is a message without an event that is known here."""

    OTHER = 0
    STARTED = 1
    DELTA = 2
    FINISHED = 3


_BY_TAG = {0x0A: Event.STARTED, 0x12: Event.DELTA, 0x1A: Event.FINISHED}  # field << 3 | length-delimited


def event_of(message: bytes) -> Event:
    """The event of a GenerateResponse: its first byte, since the event is the first field on the wire."""
    return _BY_TAG.get(message[0], Event.OTHER) if message else Event.OTHER


def tokens_after(first: bytes, last: bytes) -> int:
    """How many tokens an answer had after its first delta, given that and its end; 0 if it had no delta."""
    began = generation_pb2.GenerateResponse.FromString(first)
    if not began.HasField("delta"):
        return 0
    usage = generation_pb2.GenerateResponse.FromString(last).finished.usage
    return max(0, usage.completion_tokens - began.delta.token_count)


def request_head(request: bytes) -> Head:
    """Read a serialized GenerateRequest; the last of several fields of a kind wins, as in protobuf.

    The prompt is not decoded, and no more than its first 32 KiB are looked at.
    Raises: InvalidRequest: not a GenerateRequest, more chat messages than anybody needs, or an id that is too long.
    """
    small, prompt, messages = bytearray(), b"", []
    try:
        for number, begin, end, start in _fields(request):
            if number == _PROMPT:
                prompt = request[begin:end]
            elif number == _MESSAGES:
                messages.append((begin, end))
            else:
                small += request[start:end]
        said = generation_pb2.GenerateRequest.FromString(bytes(small))
    except (IndexError, ValueError, DecodeError):
        raise InvalidRequest(_MALFORMED) from None
    if len(messages) > MAX_CHAT_MESSAGES:
        raise InvalidRequest(f"give at most {MAX_CHAT_MESSAGES} messages", field="messages")
    if said.HasField("continuation"):
        raise InvalidRequest("only a router gives a continuation; leave it out", field="continuation")
    check_ids(said)
    size = len(prompt) + sum(end - begin for begin, end in messages)
    within: timedelta | None = None
    if said.HasField("first_token_within"):
        within = _within(said)
    sampling = said.sampling
    return Head(
        model=said.model,
        request_id=said.request_id,
        session=said.session_id,
        fairness_key=said.fairness_key,
        priority=said.priority or generation_pb2.PRIORITY_NORMAL,
        prompt_tokens=max(1, size // BYTES_PER_TOKEN),
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else DEFAULT_ANSWER_TOKENS,
        prefix=_prefix(prompt, request, messages),
        first_token_within_s=within.total_seconds() if within else None,
        logprobs=sampling.HasField("logprobs"),
    )


def _within(said: generation_pb2.GenerateRequest) -> timedelta:
    try:
        within: timedelta = said.first_token_within.ToTimedelta()
    except (OverflowError, ValueError):
        within = timedelta(0)
    if within <= timedelta(0):
        raise InvalidRequest("first_token_within must be over 0, and a duration", field="first_token_within")
    return within


def _prefix(prompt: bytes, request: bytes, messages: list[tuple[int, int]]) -> tuple[int, ...]:
    """Hashes of whole blocks; a chat's blocks begin anew at each message, so that a longer chat shares those of a shorter."""
    hashes: list[int] = []
    last = 0
    for text in itertools.chain((prompt,), (request[begin:end] for begin, end in messages)):
        for at in range(0, len(text), BLOCK_BYTES):
            if len(hashes) == MAX_BLOCKS:
                return tuple(hashes)
            block = text[at : at + BLOCK_BYTES]
            if len(block) < BLOCK_BYTES and not messages:
                break
            last = hash((last, block))
            hashes.append(last)
    return tuple(hashes)


def _fields(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(number, begin and end of the value, begin of the tag) of each outermost field.

    Raises: ValueError, IndexError: malformed.
    """
    at = 0
    for _ in range(_MAX_FIELDS):
        if at == len(data):
            return
        start = at
        tag, at = _varint(data, at)
        begin = at
        match tag & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                at += 8
            case 2:
                size, begin = _varint(data, at)
                at = begin + size
            case 5:
                at += 4
            case _:
                raise ValueError(_MALFORMED)
        if at > len(data) or not tag >> 3:
            raise ValueError(_MALFORMED)
        yield tag >> 3, begin, at, start
    raise InvalidRequest(f"give at most {MAX_CHAT_MESSAGES} messages", field="messages")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(_MALFORMED)
