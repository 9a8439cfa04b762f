"""Streams that go on for ever: how many there may be, what wakes them, and when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from ladr.errors import Draining, Overloaded

_RETRY_AFTER = timedelta(seconds=1)


class Watchers:
    """Those who watch one thing, at most `most`. Lives on one event loop.

    Attributes:
        closed: the router is going away.
        news: set at the next `tell` or `close`; take it before looking, and wait for it after.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._there = 0
        self.closed = False
        self.news = asyncio.Event()

    @contextmanager
    def one(self) -> Iterator[None]:
        """One more, for the block. Raises: Overloaded: that is one too many."""
        if self._there >= self._most:
            raise Overloaded("the router has all the watchers that it may have", retry_after=_RETRY_AFTER)
        self._there += 1
        try:
            yield
        finally:
            self._there -= 1

    def tell(self) -> None:
        """There is news for all of them."""
        self.news.set()
        self.news = asyncio.Event()

    def close(self) -> None:
        """End all watches: their watchers go to another router."""
        self.closed = True
        self.news.set()

    def leaves(self) -> Draining:
        """What a watch ends with then."""
        return Draining("this router is going away; watch another")
