"""Hears the fleet from a MetricsBus; goes on to the next one when it falls silent."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

import grpc
import structlog

from ladr.channel import BUS_MESSAGE_BYTES, client_options
from ladr.v1 import metrics_pb2, metrics_pb2_grpc

log = structlog.get_logger()

_PATIENCE_S = 1.0  # a bus says something every 200 ms
_RETRY_S = 0.1
_COMPLAIN_S = 30.0


class Listener:
    """Calls `hear` with each update, and `lost` when a stream of them ends, until it is cancelled."""

    def __init__(
        self,
        buses: Sequence[str],
        hear: Callable[[metrics_pb2.FleetUpdate], None],
        lost: Callable[[], None],
    ) -> None:
        options = client_options(BUS_MESSAGE_BYTES)
        self._channels = {bus: grpc.aio.insecure_channel(bus, options=options) for bus in buses}
        self._hear = hear
        self._lost = lost
        self._heard_s = 0.0
        self._complained_s = float("-inf")
        self._connected = False

    async def run(self) -> None:
        """Listen for ever."""
        try:
            for bus in itertools.cycle(self._channels):
                try:
                    await self._listen(bus)
                except grpc.aio.AioRpcError as error:
                    now_s = time.monotonic()
                    if self._connected or now_s - self._complained_s > _COMPLAIN_S:
                        self._complained_s = now_s
                        log.warning("bus_lost", bus=bus, code=error.code().name, reason=error.details())
                    self._connected = False
                await asyncio.sleep(_RETRY_S)
        finally:
            for channel in self._channels.values():
                await channel.close()

    async def _listen(self, bus: str) -> None:
        call = metrics_pb2_grpc.MetricsBusStub(self._channels[bus]).Subscribe(metrics_pb2.SubscribeRequest())
        self._heard_s = time.monotonic()
        watchdog = asyncio.create_task(self._watch(call))
        try:
            async for update in call:
                self._heard_s = time.monotonic()
                if not self._connected:
                    self._connected = True
                    log.info("bus_found", bus=bus)
                self._hear(update)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # from outside, not by the watchdog
            log.warning("bus_silent", bus=bus)
            self._connected = False
        finally:
            watchdog.cancel()
            call.cancel()
            self._lost()

    async def _watch(self, call: grpc.aio.Call) -> None:
        while (left_s := self._heard_s + _PATIENCE_S - time.monotonic()) > 0:  # noqa: ASYNC110  # waits for a time
            await asyncio.sleep(left_s)
        call.cancel()
