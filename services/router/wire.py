"""Which event a serialized GenerateResponse holds, without decoding it."""

from __future__ import annotations

from enum import IntEnum


class Event(IntEnum):
    """The oneof's field numbers in ladr/v1/generation.proto; OTHER is a message without an event that is known here."""

    OTHER = 0
    STARTED = 1
    DELTA = 2
    FINISHED = 3


_BY_TAG = {0x0A: Event.STARTED, 0x12: Event.DELTA, 0x1A: Event.FINISHED}  # field << 3 | length-delimited


def event_of(message: bytes) -> Event:
    """The event of a message: its first byte, since the event is the first field on the wire."""
    return _BY_TAG.get(message[0], Event.OTHER) if message else Event.OTHER
