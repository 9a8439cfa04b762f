"""Connections to workers, one an address; made when first needed, closed when the worker is forgotten."""

from __future__ import annotations

import grpc

from ladr.channel import client_options


class Channels:
    """A bounded set: as many as there are workers."""

    def __init__(self, max_message_bytes: int) -> None:
        self._options = client_options(max_message_bytes)
        self._channels: dict[str, grpc.aio.Channel] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to an address."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.aio.insecure_channel(address, options=self._options)
        return channel

    async def keep(self, addresses: set[str]) -> None:
        """Close the channels to all other addresses."""
        for address in self._channels.keys() - addresses:
            await self._channels.pop(address).close()

    async def close(self) -> None:
        """Close all."""
        await self.keep(set())
