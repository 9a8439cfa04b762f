"""What the router reads of messages without decoding them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from ladr.errors import InvalidRequest

MAX_CHAT_MESSAGES = 4096
_MODEL, _MESSAGES, _REQUEST_ID = 1, 3, 7  # field numbers of GenerateRequest
_MAX_FIELDS = MAX_CHAT_MESSAGES + 256
_MALFORMED = "the request is not a ladr.v1.GenerateRequest"


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


def request_head(request: bytes) -> tuple[str, str]:
    """Model and request_id of a serialized GenerateRequest; the last of several wins, as in protobuf.

    Reads the tags of the outermost fields alone, so that what it costs does not grow with the prompt.
    Raises: InvalidRequest: not a GenerateRequest, or more chat messages than anybody needs.
    """
    model = request_id = b""
    messages = 0
    try:
        for number, begin, end in _fields(request):
            if number == _MODEL:
                model = request[begin:end]
            elif number == _REQUEST_ID:
                request_id = request[begin:end]
            elif number == _MESSAGES:
                messages += 1
        head = model.decode(), request_id.decode()
    except (IndexError, ValueError):
        raise InvalidRequest(_MALFORMED) from None
    if messages > MAX_CHAT_MESSAGES:
        raise InvalidRequest(f"give at most {MAX_CHAT_MESSAGES} messages", field="messages")
    return head


def _fields(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(number, begin, end of the value) of each outermost field. Raises: ValueError, IndexError: malformed."""
    at = 0
    for _ in range(_MAX_FIELDS):
        if at == len(data):
            return
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
        yield tag >> 3, begin, at
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
