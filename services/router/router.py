"""One request through the router: model, worker, stream, and another worker if the first is lost in time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import timedelta
from random import Random

import grpc
import structlog
import uuid_utils
from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from ladr.config import RouterSettings
from ladr.errors import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    InvalidRequest,
    LadrError,
    NotFound,
    NoWorker,
    Overloaded,
    Unreachable,
    WorkerLost,
)
from ladr.routing import policies
from ladr.routing.board import Lease, Row, Scoreboard
from ladr.routing.budget import RetryBudget
from ladr.routing.channels import Channels
from ladr.routing.policies.least_request import LeastRequest
from ladr.routing.wire import Event, event_of, request_head
from ladr.status import from_rpc
from ladr.v1 import generation_pb2
from services.common.telemetry import metadata_of, tracer
from services.router.stats import RouterStats

log = structlog.get_logger()

GENERATE = "/ladr.v1.Worker/Generate"
_PATIENCE_S = 1.0  # how long a request waits for a worker to come back when none is eligible
_RETRY_AFTER = timedelta(seconds=1)
# Another worker may do better: the request had no fault, and nothing of the answer is out yet.
_RETRIABLE = (Unreachable, Draining, NoWorker, NotFound, Overloaded, EngineFailed)


class Router:
    """Routes requests over a scoreboard."""

    def __init__(self, settings: RouterSettings, stats: RouterStats, rng: Random) -> None:
        self._settings = settings
        self._stats = stats
        self._rng = rng
        self._policy = policies.create(settings)
        self._fallback = LeastRequest()
        self._promised = {*settings.aliases.values(), settings.default_model}  # names that the operator knows of
        self._budget = RetryBudget(settings.retry_budget)
        self._news = asyncio.Event()  # set and replaced when the board changes
        self.board = Scoreboard(settings.theta, settings.ttl.total_seconds())
        self.channels = Channels(settings.max_message_bytes)
        self.open = 0

    def changed(self) -> None:
        """The board has news: wake the requests that wait for a worker."""
        self._news.set()
        self._news = asyncio.Event()

    def policy(self, now_s: float) -> policies.Policy:
        """The policy that picks now: by own counts alone while no reports come."""
        return self._fallback if self.board.blind(now_s) else self._policy

    def resolve(self, asked: str) -> str:
        """Served name of what a request asks for.

        Raises: NotFound: nobody has it, and it is no alias. InvalidRequest: it names none, and there is no default.
        NoWorker: there is no model at all yet.
        """
        name = asked or self._settings.default_model
        name = self._settings.aliases.get(name, name)
        if name and (self.board.knows(name) or name in self._promised):
            return name
        known = self.board.models()
        if not known:
            raise NoWorker("no worker has a model yet", retry_after=_RETRY_AFTER)
        if not name and len(known) == 1:
            return next(iter(known))
        if not name:
            raise InvalidRequest(f"name a model: {', '.join(sorted(known)[:8])}", field="model")
        raise NotFound(f"no worker serves {name[:64]!r}", resource=("model", name[:128]))

    async def generate(self, raw: bytes, timeout_s: float | None) -> AsyncGenerator[bytes]:
        """Pass a request to a worker and its messages back, all as bytes.

        Args: raw: a serialized GenerateRequest. timeout_s: what is left of the caller's deadline, in seconds.
        Raises: any error of ladr.v1.Router.Generate.
        """
        arrived_s = time.monotonic()
        deadline_s = arrived_s + timeout_s if timeout_s is not None else None
        model = "other"
        self.open += 1
        try:
            if self.open > self._settings.max_streams:
                raise Overloaded("the router has all the streams that it may have", retry_after=_RETRY_AFTER)
            asked, request_id = request_head(raw)
            model = self.resolve(asked)
            self._budget.request(arrived_s)
            request_id = request_id or str(uuid_utils.uuid7())
            trace.get_current_span().set_attributes(
                {"gen_ai.operation.name": "chat", "gen_ai.request.model": model, "ladr.request_id": request_id}
            )
            async with aclosing(self._attempts(raw, model, request_id, arrived_s, deadline_s)) as messages:
                async for message in messages:
                    yield message
            self._stats.ended(model, "ok")
        except LadrError as error:
            self._stats.ended(model, error.reason.lower())
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._stats.ended(model, "cancelled")
            raise
        finally:
            self.open -= 1

    async def _attempts(
        self, raw: bytes, model: str, request_id: str, arrived_s: float, deadline_s: float | None
    ) -> AsyncGenerator[bytes]:
        tried: set[Row] = set()
        for attempt in itertools.count(1):
            row = await self._pick(model, tried, deadline_s)
            # Fields set again at the end win: the prompt is never decoded and encoded anew.
            own = generation_pb2.GenerateRequest(model=model, request_id=request_id, attempt=attempt)
            with Lease(row) as lease:
                stream = self._stream(lease, raw + own.SerializeToString(), attempt, deadline_s)
                try:
                    async with aclosing(stream) as messages:
                        async for message in messages:
                            if not lease.first_token and event_of(message) is not Event.STARTED:
                                lease.first_token = True
                                row.served()
                                self._stats.first_token(model, time.monotonic() - arrived_s)
                            yield message
                    return
                except LadrError as error:
                    self._judge(lease, error, model)
                    if lease.first_token:
                        if isinstance(error, Unreachable):
                            raise WorkerLost("the worker was lost in the middle of the answer") from error
                        raise
                    tried.add(row)
                    if not self._may_retry(error, attempt, model, tried):
                        raise
                    log.info("retry", worker=row.worker_id, reason=error.reason, attempt=attempt)
                    self._stats.retried(error.reason.lower())

    def _may_retry(self, error: LadrError, attempt: int, model: str, tried: set[Row]) -> bool:
        if not isinstance(error, _RETRIABLE) or attempt >= self._settings.max_attempts:
            return False
        now_s = time.monotonic()
        if isinstance(
            error, Overloaded
        ):  # nothing was lost, so it costs no budget; but the full need not be asked twice
            return any(row not in tried for row in self.board.eligible(model, now_s))
        return self._budget.retry(now_s)

    def _judge(self, lease: Lease, error: LadrError, model: str) -> None:
        """What an error says about the worker, beside the request."""
        row = lease.row
        if lease.revoked:
            return  # its silence is known
        if isinstance(error, Unreachable):
            row.unreachable(time.monotonic())
        elif isinstance(error, Draining):
            row.drains()
        elif isinstance(error, NotFound):
            row.lacks(model)
        elif isinstance(error, EngineFailed) and not lease.first_token:
            row.broke(time.monotonic())

    async def _pick(self, model: str, tried: set[Row], deadline_s: float | None) -> Row:
        """A worker that was not tried yet, else one that was; waits a moment if none may take requests."""
        give_up_s = time.monotonic() + _PATIENCE_S
        if deadline_s is not None:
            give_up_s = min(give_up_s, deadline_s)
        while True:
            now_s = time.monotonic()
            rows = self.board.eligible(model, now_s)
            if rows:
                return self.policy(now_s).pick([row for row in rows if row not in tried] or rows, self._rng)
            if now_s >= give_up_s:
                if deadline_s is not None and now_s >= deadline_s:
                    raise DeadlineExceeded("the deadline passed before a worker was there")
                raise NoWorker("no worker can take the request now", retry_after=_RETRY_AFTER)
            with suppress(TimeoutError):
                async with asyncio.timeout(give_up_s - now_s):
                    await self._news.wait()

    async def _stream(
        self, lease: Lease, request: bytes, attempt: int, deadline_s: float | None
    ) -> AsyncGenerator[bytes]:
        """Messages of one attempt as they come. Raises: LadrError: it failed; Unreachable if the worker is gone."""
        row = lease.row
        address = row.report.address
        timeout_s = None
        if deadline_s is not None:
            timeout_s = deadline_s - time.monotonic()
            if timeout_s <= 0:
                raise DeadlineExceeded("the deadline passed")
        attributes: dict[str, AttributeValue] = {
            "ladr.worker": row.worker_id,
            "ladr.attempt": attempt,
            "server.address": address,
        }
        span = tracer.start_span("attempt", kind=trace.SpanKind.CLIENT, attributes=attributes)
        with self.channels.to(address) as channel:
            call = channel.unary_stream(GENERATE)(request, timeout=timeout_s, metadata=metadata_of(span))
            lease.cancel = call.cancel
            finished = False
            try:
                async for message in call:
                    finished = event_of(message) is Event.FINISHED
                    yield message
                if not finished:
                    raise Unreachable("the worker's stream ended without an end")
            except grpc.aio.AioRpcError as error:
                failure = from_rpc(error.code(), error.details() or "", error.trailing_metadata())
                span.set_attribute("error.type", failure.reason)
                if isinstance(failure, Unreachable):
                    raise Unreachable("the worker does not answer") from error
                raise failure from error
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # the caller went away
                span.set_attribute("error.type", "SILENT")
                raise Unreachable("the worker fell silent") from None
            finally:
                call.cancel()
                span.end()
