"""The client of router_overhead, in a process of its own (see helper).

An order is {"targets": [[address, method], …], "streams": n, "seconds": s, "request": hex of a GenerateRequest}: so many
streams at once for so long, each of which takes the targets in turn, one request after the other. The method LOOK_ASIDE stands
for a client that watches the router at that address and goes to its workers by itself. The result has for each target the
times to the first delta [s], and the seconds that all of it took.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import uvloop
from opentelemetry.context import Context

from benchmarks.helper import end_with_parent, obey
from ladr.channel import client_options
from ladr.lookaside import LookAside
from ladr.v1.generation_pb2 import GenerateRequest, GenerateResponse

LOOK_ASIDE = "look-aside"
CHANNELS = 8  # to an address, so that each of several processes behind it gets some


class Client:
    """Channels, kept for the next order."""

    def __init__(self) -> None:
        self._channels: dict[tuple[str, int], grpc.aio.Channel] = {}
        self._lookasides: dict[str, LookAside] = {}

    async def carry_out(self, order: dict[str, Any]) -> dict[str, Any]:
        targets = [tuple(target) for target in order["targets"]]
        first_s: list[list[float]] = [[] for _ in targets]
        began_s = time.monotonic()
        request = GenerateRequest.FromString(bytes.fromhex(order["request"]))
        async with asyncio.TaskGroup() as group:
            for number in range(order["streams"]):
                group.create_task(self._stream(number, targets, request, began_s + order["seconds"], first_s))
        return {"first_s": first_s, "seconds": time.monotonic() - began_s}

    async def _stream(
        self,
        number: int,
        targets: list[tuple[str, str]],
        request: GenerateRequest,
        end_s: float,
        first_s: list[list[float]],
    ) -> None:
        while time.monotonic() < end_s:
            for target, found in zip(targets, first_s, strict=True):
                found.append(await self._ask(number, *target, request))

    async def _ask(self, number: int, address: str, method: str, request: GenerateRequest) -> float:
        """Seconds to the first delta."""
        sent_s = time.monotonic()
        came_s = 0.0
        call = self._call(number, address, method, request)
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                if not came_s and message.WhichOneof("event") == "delta":
                    came_s = time.monotonic()
        finally:
            call.cancel()
        return came_s - sent_s

    def _call(self, number: int, address: str, method: str, request: GenerateRequest) -> Any:
        if method != LOOK_ASIDE:
            stub = self._channel(address, number % CHANNELS).unary_stream(
                method, GenerateRequest.SerializeToString, GenerateResponse.FromString
            )
            return stub(request)
        if address not in self._lookasides:
            self._lookasides[address] = LookAside(lambda: self._channel(address, 0), address)
        return self._lookasides[address].call(request, None, Context())

    def _channel(self, address: str, number: int) -> grpc.aio.Channel:
        key = address, number
        if key not in self._channels:
            options = [*client_options(), ("grpc.use_local_subchannel_pool", 1)]
            self._channels[key] = grpc.aio.insecure_channel(address, options=options)
        return self._channels[key]


async def main() -> None:
    await obey(Client().carry_out)


if __name__ == "__main__":
    end_with_parent()
    uvloop.run(main())
