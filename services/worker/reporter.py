"""Pushes the worker's report to the MetricsBus every 200 ms, from a thread with a connection of its own.

A busy engine or a blocked event loop does not delay it; a process that is stopped as a whole (SIGSTOP) falls silent, as it
should.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import grpc
import structlog

from ladr.v1 import fleet_pb2, metrics_pb2_grpc

log = structlog.get_logger()

_PATIENCE_S = 1.0  # without an acknowledgement for so long, the next bus is tried
_RETRY_S = 0.1
_COMPLAIN_S = 30.0
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]


class Reporter:
    """Reports until `close`; `wake` sends one at once."""

    def __init__(
        self, report: Callable[[int], fleet_pb2.WorkerReport], buses: Sequence[str], interval: timedelta
    ) -> None:
        self._report = report
        self._interval_s = interval.total_seconds()
        self._sequence = itertools.count(1)
        self._buses = itertools.cycle(buses)
        self._channels: dict[str, grpc.Channel] = {}
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._acknowledged_s = 0.0
        self._complained_s = float("-inf")
        self._connected = False
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    @property
    def connected(self) -> bool:
        """Whether a bus has acknowledged the newest reports."""
        return self._connected

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Report now: something changed."""
        self._wake.set()

    def close(self) -> None:
        """Send a last report and end; takes a second at most."""
        self._closing.set()
        self._wake.set()
        if self._thread.ident:
            self._thread.join(_PATIENCE_S)
        for channel in self._channels.values():
            channel.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            bus = next(self._buses)
            try:
                self._publish(bus)
            except grpc.RpcError as error:
                self._complain(bus, error)
                self._connected = False
                self._closing.wait(_RETRY_S)

    def _complain(self, bus: str, error: grpc.RpcError) -> None:
        """Say that a bus does not take reports: when it is lost, and now and then while it stays so."""
        now_s = time.monotonic()
        if self._connected or now_s - self._complained_s > _COMPLAIN_S:
            self._complained_s = now_s
            log.warning("bus_lost", bus=bus, code=error.code().name, reason=error.details())

    def _publish(self, bus: str) -> None:
        channel = self._channels.get(bus)
        if channel is None:
            channel = self._channels[bus] = grpc.insecure_channel(bus, options=_OPTIONS)
        self._acknowledged_s = time.monotonic()
        call = metrics_pb2_grpc.MetricsBusStub(channel).Publish(self._reports(lambda: call.cancel()))
        for _ in call:
            self._acknowledged_s = time.monotonic()
            if not self._connected:
                self._connected = True
                log.info("bus_found", bus=bus)

    def _reports(self, give_up: Callable[[], object]) -> Iterator[fleet_pb2.WorkerReport]:
        """One report an interval; the last one after `close`. Runs on grpc's own thread for the call."""
        while True:
            closing = self._closing.is_set()
            self._wake.clear()
            yield self._report(next(self._sequence))
            if closing:
                return
            if time.monotonic() - self._acknowledged_s > _PATIENCE_S:
                give_up()
                return
            self._wake.wait(self._interval_s)
