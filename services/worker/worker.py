"""The worker itself: takes a request through queue, engine and out again, and knows what to report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import timedelta

import structlog
import uuid_utils
from opentelemetry import trace

from ladr.config import WorkerSettings
from ladr.errors import CannotResume, Draining, EngineFailed, InvalidRequest, LadrError, NotFound
from ladr.routing.orders import class_of
from ladr.v1 import fleet_pb2, generation_pb2
from services.common.telemetry import tracer
from services.worker.engine import End, Engine, EngineRequest, Gauges, Piece
from services.worker.engines import DRAFTS
from services.worker.gpus import Gpus
from services.worker.messages import Times, load_message, messages
from services.worker.models import Models
from services.worker.outbox import Ended, Outbox
from services.worker.requests import engine_request
from services.worker.slots import Slots, Ticket
from services.worker.stats import Stats, Totals
from services.worker.text import about_tokens

log = structlog.get_logger()

BEAT_S = 0.05


class Worker:
    """One engine, its models and its queue. Lives on one event loop; `report` may be called from any thread."""

    def __init__(self, settings: WorkerSettings, engine: Engine, gpus: Gpus, changed: Callable[[], None]) -> None:
        self.settings = settings
        self.id = settings.id  # both known for certain once the port is bound
        self.incarnation = str(uuid_utils.uuid7())
        self.address = ""
        self.stats = Stats()
        self.slots = Slots(settings.slots, settings.queue_limit)
        self.models = Models(engine, settings.max_models, changed, settings.engine in DRAFTS)
        self._engine = engine
        self._gpus = gpus
        self._changed = changed
        self._started = False
        self._draining = False
        self._stopped = False
        self._beat_s = time.monotonic()

    async def beat(self) -> None:
        """Run for ever; how late it is tells how far the loop is behind."""
        while True:
            self._beat_s = time.monotonic()
            await asyncio.sleep(BEAT_S)

    def started(self) -> None:
        """The models of the settings are loaded."""
        self._started = True
        self._changed()

    def drain(self, undo: bool = False) -> None:
        """Take nothing new, or take again."""
        self._draining = not undo
        self._changed()
        log.info("drain", undo=undo)

    def stopped(self) -> None:
        """The next report is the last."""
        self._stopped = True
        self._changed()

    @property
    def state(self) -> fleet_pb2.WorkerState:
        if self._stopped:
            return fleet_pb2.WORKER_STATE_STOPPED
        if self._draining:
            return fleet_pb2.WORKER_STATE_DRAINING
        return fleet_pb2.WORKER_STATE_READY if self._started else fleet_pb2.WORKER_STATE_STARTING

    async def generate(self, request: generation_pb2.GenerateRequest) -> AsyncIterator[generation_pb2.GenerateResponse]:
        """Answer a request: `started`, deltas, one `finished`. Closing the stream stops the engine.

        Raises: InvalidRequest, NotFound, Overloaded, Draining, CannotResume, EngineFailed.
        """
        times = Times(time.monotonic())
        if self._draining or self._stopped:
            raise Draining("this worker is draining; ask another")
        with self.models.use(request.model) as model:
            wanted = engine_request(request, model)
            ticket = self.slots.enter(class_of(request.priority), self._wait_hint(), about_tokens(wanted))
            load = self.slots.load
            outbox = Outbox(self.settings.batch_tokens, self.settings.batch_delay.total_seconds())
            pump = asyncio.create_task(self._pump(wanted, ticket, times, outbox))
            try:
                yield generation_pb2.GenerateResponse(
                    started=generation_pb2.Started(
                        worker_id=self.id,
                        incarnation=self.incarnation,
                        model=model,
                        attempt=max(request.attempt, 1),
                        request_id=request.request_id,
                        load=load_message(load),
                    )
                )
                async for message in messages(outbox, times, request.continuation.token_count):
                    yield message
            finally:
                pump.cancel()
                try:
                    await asyncio.gather(pump, return_exceptions=True)
                finally:
                    ticket.leave()
                    _trace(times, model)

    async def _pump(self, request: EngineRequest, ticket: Ticket, times: Times, outbox: Outbox) -> None:
        """Take events from the engine as they come, whatever the client's pace; holds the slot just as long.

        The end is told once the slot is free, so that the load that goes with it is true.
        """
        try:
            await ticket.turn()
            times.slot_s = time.monotonic()
            end = None
            async with aclosing(self._engine.generate(request)) as events:  # type: ignore[type-var]
                async for event in events:
                    times.last_s = self._count(event, times)
                    if isinstance(event, End):
                        end = event
                    else:
                        outbox.put(event)
            ticket.leave()
            if end is None:
                raise EngineFailed("the engine ended without finishing the answer")
            self.stats.finished(times.last_s - times.arrived_s, end.prompt_tokens - end.cached_prompt_tokens)
            outbox.put(Ended(end, self.slots.load))
        except asyncio.CancelledError:
            self.stats.cancelled()
            raise
        except LadrError as error:
            if times.slot_s and not isinstance(error, InvalidRequest | NotFound | CannotResume):
                self.stats.failed()
                log.warning("engine_failed", request_id=request.id, reason=error.message)
            outbox.put(error)
        except Exception:
            log.exception("engine_broke", request_id=request.id)
            self.stats.failed()
            outbox.put(EngineFailed("the engine failed on this request"))
        finally:
            ticket.leave()

    def _count(self, event: Piece | End, times: Times) -> float:
        """Count the tokens of an event; gives the time of it."""
        now_s = time.monotonic()
        if isinstance(event, End) or not event.count:
            return now_s
        self.stats.generated(event.count, now_s)
        if times.first_s:
            self.stats.paced(event.count, now_s - times.last_s)
        else:
            times.first_s = now_s
            self.stats.first_token(now_s - times.arrived_s)
        return now_s

    def _wait_hint(self) -> timedelta:
        """About when a place in the queue will be free: one answer's mean time, shared by the slots; 1 s before the first."""
        e2e = self.stats.counts().end_to_end
        mean_s = e2e.sum_s / e2e.count if e2e.count else 1.0
        return timedelta(seconds=min(max(mean_s / self.slots.slots, 0.05), 10.0))

    def report(self, sequence: int) -> fleet_pb2.WorkerReport:
        """What the worker says of itself now. Callable from any thread, whatever the event loop does."""
        now_s = time.monotonic()
        counts = self.stats.counts()
        gauges = self._engine.gauges()
        load = self.slots.load
        report = fleet_pb2.WorkerReport(
            worker_id=self.id,
            incarnation=self.incarnation,
            sequence=sequence,
            address=self.address,
            state=self.state,
            models=self.models.statuses(),
            engine=self.settings.engine,
            slots=self.slots.slots,
            running=load.running,
            queued=load.queued,
            load_revision=load.revision,
            queued_prompt_tokens=load.queued_tokens,
            accepted_total=load.accepted,
            queue_limit=self.slots.queue_limit,
            time_to_first_token=_totals(counts.time_to_first_token),
            time_per_output_token=_totals(counts.time_per_output_token),
            end_to_end=_totals(counts.end_to_end),
            tokens_per_second=self.stats.tokens_per_second(now_s),
            kv_used_ratio=gauges.kv_used_ratio,
            gpus=[
                fleet_pb2.GpuMemory(index=g.index, used_bytes=g.used_bytes, total_bytes=g.total_bytes)
                for g in self._gpus.memory()
            ],
            drafting=_drafting(gauges),
            finished_total=counts.finished,
            failed_total=counts.failed,
            cancelled_total=counts.cancelled,
            tokens_total=counts.tokens,
            prompt_tokens_total=counts.prompt_tokens,
        )
        report.loop_lag.FromTimedelta(timedelta(seconds=max(0.0, now_s - self._beat_s - BEAT_S)))
        report.reported_at.GetCurrentTime()
        return report


def _drafting(gauges: Gauges) -> fleet_pb2.DraftTotals | None:
    if gauges.drafted_tokens is None:
        return None
    return fleet_pb2.DraftTotals(
        drafted_tokens=gauges.drafted_tokens, accepted_tokens=gauges.accepted_tokens, paused=gauges.draft_paused
    )


def _totals(totals: Totals) -> fleet_pb2.LatencyTotals:
    message = fleet_pb2.LatencyTotals(count=totals.count)
    message.sum.FromTimedelta(timedelta(seconds=totals.sum_s))
    return message


def _trace(times: Times, model: str) -> None:
    """Spans of the request's way through queue and engine, made once it is over."""
    ahead_ns = time.time_ns() - time.monotonic_ns()  # from the monotonic clock to the wall clock

    def span(name: str, begin_s: float, end_s: float) -> None:
        made = tracer.start_span(
            name, start_time=int(begin_s * 1e9) + ahead_ns, attributes={"gen_ai.request.model": model}
        )
        made.end(int(end_s * 1e9) + ahead_ns)

    now_s = time.monotonic()
    if not trace.get_current_span().is_recording():
        return
    span("queue", times.arrived_s, times.slot_s or now_s)
    if times.slot_s:
        span("prefill", times.slot_s, times.first_s or now_s)
    if times.first_s:
        span("decode", times.first_s, times.last_s or now_s)
