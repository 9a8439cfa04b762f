"""In which order those who wait are served."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ladr.config import RouterSettings


@dataclass(eq=False)
class Entry:
    """What an order may know of a request that waits."""

    arrived_s: float
    deadline_s: float | None = None
    tokens: float = 0.0
    key: str = ""
    priority: int = 2


E = TypeVar("E", bound=Entry)


class Order(Protocol[E]):
    """Holds those who wait."""

    def push(self, entry: E) -> None:
        """One more."""

    def peek(self, now_s: float) -> E | None:
        """Who is next; None: nobody waits."""

    def remove(self, entry: E) -> None:
        """It waits no longer; nothing happens if it did not."""

    def __len__(self) -> int: ...


class Fifo(Generic[E]):
    """First come, first served."""

    def __init__(self) -> None:
        self._entries: OrderedDict[E, None] = OrderedDict()

    def push(self, entry: E) -> None:
        self._entries[entry] = None

    def peek(self, now_s: float) -> E | None:
        return next(iter(self._entries), None)

    def remove(self, entry: E) -> None:
        self._entries.pop(entry, None)

    def __len__(self) -> int:
        return len(self._entries)


def create(settings: RouterSettings) -> Order[Any]:
    """The order that the settings name."""
    return Fifo()
