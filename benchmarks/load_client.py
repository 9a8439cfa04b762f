"""The client of router_overhead, in a process of its own: takes orders on stdin and gives results on stdout, a JSON line each.

An order is {"targets": [[address, method], …], "streams": n, "seconds": s, "request": hex of a GenerateRequest}: so many
streams at once for so long, each of which takes the targets in turn, one request after the other. The result has for each
target the times to the first delta [s], and in all the messages that came and the seconds that they took.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import sys
import time
from typing import Any

import grpc
import uvloop

from ladr.channel import client_options

_DELTA_TAG = 0x12


class Client:
    """Channels, kept for the next order."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._messages = 0

    async def carry_out(self, order: dict[str, Any]) -> dict[str, Any]:
        self._messages = 0
        targets = [tuple(target) for target in order["targets"]]
        first_s: list[list[float]] = [[] for _ in targets]
        began_s = time.monotonic()
        request = bytes.fromhex(order["request"])
        async with asyncio.TaskGroup() as group:
            for _ in range(order["streams"]):
                group.create_task(self._stream(targets, request, began_s + order["seconds"], first_s))
        return {"first_s": first_s, "messages": self._messages, "seconds": time.monotonic() - began_s}

    async def _stream(
        self, targets: list[tuple[str, str]], request: bytes, end_s: float, first_s: list[list[float]]
    ) -> None:
        while time.monotonic() < end_s:
            for target, found in zip(targets, first_s, strict=True):
                found.append(await self._ask(*target, request))

    async def _ask(self, address: str, method: str, request: bytes) -> float:
        """Seconds to the first delta."""
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=client_options())
        sent_s = time.monotonic()
        came_s = 0.0
        call = self._channels[address].unary_stream(method)(request)
        try:
            async for message in call:
                self._messages += 1
                if not came_s and message[0] == _DELTA_TAG:
                    came_s = time.monotonic()
        finally:
            call.cancel()
        return came_s - sent_s


def end_with_parent() -> None:
    """Get SIGTERM when the process that started this one ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


async def main() -> None:
    client = Client()
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await client.carry_out(json.loads(line))), flush=True)


if __name__ == "__main__":
    end_with_parent()
    uvloop.run(main())
