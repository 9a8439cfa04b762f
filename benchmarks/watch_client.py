"""Watchers of a router's table in a process of their own (see helper): `python -m benchmarks.watch_client ADDRESS COUNT`.

COUNT streams of WatchRoutes with reports and changes only, each on a connection of its own, whose tables are counted and not
decoded. With COUNT 0 there is one client that looks aside, and hears each table as it does. Each order gives the number of
tables and of bytes so far (0 of both for the client that looks aside: it does not count).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import uvloop

from benchmarks.helper import end_with_parent, obey
from ladr.channel import client_options
from ladr.lookaside import LookAside
from ladr.v1.router_pb2 import WatchRoutesRequest


class Watchers:
    """Counts what they hear."""

    def __init__(self) -> None:
        self._tables = 0
        self._bytes = 0

    async def watch(self, address: str) -> None:
        """Until cancelled."""
        call = _channel(address).unary_stream("/ladr.v1.Router/WatchRoutes")(
            WatchRoutesRequest(reports=True, changes_only=True).SerializeToString()
        )
        try:
            async for table in call:
                self._tables += 1
                self._bytes += len(table)
        finally:
            call.cancel()

    async def tell(self, _: Any) -> dict[str, int]:
        return {"tables": self._tables, "bytes": self._bytes}


def _channel(address: str) -> grpc.aio.Channel:
    options = [*client_options(), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(address, options=options)


async def main(address: str, count: int) -> None:
    watchers = Watchers()
    tasks = [asyncio.create_task(watchers.watch(address)) for _ in range(count)]
    lookaside = LookAside(lambda: _channel(address), address)
    if not count:
        lookaside.start()
    await obey(watchers.tell)
    for task in tasks:
        task.cancel()
    await lookaside.close()


if __name__ == "__main__":
    end_with_parent()
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
