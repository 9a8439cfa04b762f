"""Connections to workers, one an address; made when first needed, closed when the worker is gone and nothing is open on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from ladr.channel import client_options


class Channels:
    """A bounded set: as many as there are workers, and those that still have calls."""

    def __init__(self, max_message_bytes: int) -> None:
        self._options = client_options(max_message_bytes)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._users: Counter[str] = Counter()

    @contextmanager
    def to(self, address: str) -> Iterator[grpc.aio.Channel]:
        """The channel to an address, kept open for the block."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.aio.insecure_channel(address, options=self._options)
        self._users[address] += 1
        try:
            yield channel
        finally:
            self._users[address] -= 1
            if not self._users[address]:
                del self._users[address]

    async def keep(self, addresses: set[str]) -> None:
        """Close the channels to all other addresses, but for those in use."""
        for address in self._channels.keys() - addresses:
            if address not in self._users and address in self._channels:  # as it is now, after the last was closed
                await self._channels.pop(address).close()

    async def close(self) -> None:
        """Close all."""
        for address in list(self._channels):
            await self._channels.pop(address).close()
