"""What was measured on so little that its figures say little: the report says so in plain words."""

from __future__ import annotations

BATTLES, TOKENS, RECORDS = 10, 1000, 20
"""With fewer of them a figure is not to be relied on."""


def only(records: int, tokens: int | None = None, what: str = "records") -> str:
    """What a figure was measured on, as the end of its sentence; nothing where that is enough.

    Args: tokens: of these records; None: they have none that count.
    """
    few = records < RECORDS or (tokens is not None and tokens < TOKENS)
    measured = f"{records:,} {what}" if tokens is None else f"{tokens:,} tokens of {records:,} {what}"
    return f", of {measured} only" if few else ""
