"""Sends requests when they are due, whatever became of the ones before: nothing that a server does delays a request.

Latencies count from the intended time, so that a request which this process sends late is charged with the delay; how late
it was is measured too.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from ladr.bench.arrivals import Arrival
from ladr.bench.measure import Measurement
from ladr.bench.prompts import Prompts
from ladr.bench.witness import Outcome, Witness
from ladr.channel import client_options
from ladr.errors import Cancelled
from ladr.failure import not_ready
from ladr.request import RequestOptions, generate_request
from ladr.status import from_rpc

TOO_MANY_OPEN = "TOO_MANY_OPEN"  # the generator's own: it was not sent, since as many as may be were open
GENERATE = "/ladr.v1.Router/Generate"
_CONNECT_S = 5.0
_BREATH = 32  # requests due at once between two looks at what came back


@asynccontextmanager
async def connections(address: str, count: int) -> AsyncIterator[list[Any]]:
    """Channels to a router, each a connection of its own.

    Raises: Unreachable: nothing answers there.
    """
    options = [*client_options(), ("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(count)]
    try:
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.gather(*(channel.channel_ready() for channel in channels))
        except TimeoutError:
            raise not_ready(address, _CONNECT_S, answered=False) from None
        yield channels
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


class Generator:
    """One run of a load over open channels.

    Args:
        timeout_s: for a whole answer, from its intended time.
        max_open: past so many open requests the next is not sent, and counts as TOO_MANY_OPEN.
        method: what is called: a router's, or a worker's own through a proxy that knows nothing of LADR.

    Attributes:
        sent, failed: how many so far. open: how many are unanswered now.
    """

    def __init__(
        self,
        channels: Sequence[Any],
        measurement: Measurement,
        prompts: Prompts,
        timeout_s: float,
        max_open: int,
        method: str = GENERATE,
    ) -> None:
        self._methods = itertools.cycle([channel.unary_stream(method) for channel in channels])  # bytes, both ways
        self._measurement = measurement
        self._prompts = prompts
        self._timeout_s = timeout_s
        self._max_open = max_open
        self.sent = 0
        self.open = 0
        self.failed = 0

    async def run(self, arrivals: Iterable[Arrival]) -> None:
        """Send all, and wait until each is answered or has failed; open ones are cancelled where it is left early."""
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, arrival in enumerate(arrivals):
                request = self._request(number, arrival)
                due_s = began_s + arrival.at_s
                wait_s = due_s - time.monotonic()
                if wait_s > 0 or number % _BREATH == 0:
                    await asyncio.sleep(max(wait_s, 0))
                if self.open >= self._max_open:
                    self._record(Outcome(arrival.at_s, time.monotonic() - due_s, reason=TOO_MANY_OPEN))
                    continue
                self.open += 1
                group.create_task(self._one(request, arrival.at_s, due_s))

    async def _one(self, request: bytes, at_s: float, due_s: float) -> None:
        witness = Witness()
        sent_s = time.monotonic()
        self.sent += 1
        call = next(self._methods)(request, timeout=max(0.0, due_s + self._timeout_s - sent_s))
        failure = ""
        try:
            async for message in call:
                witness.take(message, time.monotonic())
        except grpc.aio.AioRpcError as error:
            failure = from_rpc(error.code(), error.details() or "", error.trailing_metadata()).reason
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            failure = Cancelled.reason  # the call was, not we
        finally:
            call.cancel()
            self.open -= 1
        self._record(witness.outcome(at_s, due_s, sent_s, time.monotonic(), failure))

    def _record(self, outcome: Outcome) -> None:
        self.failed += bool(outcome.reason)
        self._measurement.record(outcome)

    def _request(self, number: int, arrival: Arrival) -> bytes:
        prompt = self._prompts.prompt(number, arrival.prompt_tokens, arrival.session_id)
        options: RequestOptions = {
            "model": arrival.model,
            "session_id": arrival.session_id,
            "max_tokens": arrival.answer_tokens,
        }
        if arrival.priority:
            options["priority"] = arrival.priority
        return generate_request(prompt, options).SerializeToString()
