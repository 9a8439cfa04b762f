"""The way of a request: name, worker, stream; another worker before the first token, and one that goes on after it.

No server here: a Router process has it behind gRPC, a look-aside client in its own process.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing
from datetime import timedelta
from random import Random

from opentelemetry import trace

from ladr.config import RouterSettings
from ladr.errors import (
    BrokenStream,
    CannotResume,
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
from ladr.routing import cascade
from ladr.routing.attempt import Attempt
from ladr.routing.binder import Binder
from ladr.routing.budget import RetryBudget
from ladr.routing.channels import Channels
from ladr.routing.ema import Ema
from ladr.routing.hedge import race
from ladr.routing.lease import Lease
from ladr.routing.models import Models, Target
from ladr.routing.request import Request
from ladr.routing.row import Row
from ladr.routing.sink import Sink
from ladr.routing.wire import Event, event_of, request_head, tokens_after

_RETRY_AFTER = timedelta(seconds=1)
_BACKOFF_S = (0.01, 0.25)  # first and longest pause before another attempt; a random part of it is waited
_HEDGE_RESERVE = 2
_MAX_TAKEN_BACK = 16  # of one request
# Another worker may do better: the request had no fault.
_RETRIABLE = (Unreachable, Draining, NoWorker, NotFound, Overloaded, EngineFailed)
_WILL_SAY_IT_AGAIN = (Overloaded, CannotResume, BrokenStream)
_LOST = (*_RETRIABLE, CannotResume, BrokenStream)  # after the first token also these
_ELSEWHERE = (NoWorker, Overloaded)  # nobody can take it for this model


class _TakenBack(Exception):
    """A request is better off elsewhere than in the queue of the worker that took it."""


class Router:
    """Routes requests over a scoreboard. Lives on one event loop.

    Args: make_id: makes a request_id for a request that has none.
    """

    def __init__(self, settings: RouterSettings, rng: Random, make_id: Callable[[], str], sink: Sink) -> None:
        self._settings = settings
        self._rng = rng
        self._make_id = make_id
        self._sink = sink
        self._retries = RetryBudget(settings.retry_budget)
        self._hedges = RetryBudget(settings.hedge_budget, _HEDGE_RESERVE)
        self._answers: defaultdict[str, Ema] = defaultdict(lambda: Ema(settings.theta))  # tokens an answer, by model
        self._thresholds = {
            name: cascade.Threshold(one.threshold, one.share) for name, one in settings.cascades.items()
        }
        self.channels = Channels(settings.max_message_bytes)
        self.binder = Binder(settings, rng, self.channels)
        self.board = self.binder.board
        self.models = Models(settings, self.board.knows, self.board.models)
        self._attempts_open: set[Attempt] = set()
        self.open = 0

    def answer_tokens(self, model: str) -> float:
        """Tokens of a model's recent answers; 0 before the first."""
        return self._answers[model].value or 0.0 if model in self._answers else 0.0

    def served(self, asked: str) -> str:
        """The served name behind a name that somebody asks for. Raises: as `Models.resolve`."""
        return self.models.resolve(asked, self._rng).model

    def tick(self, now_s: float) -> None:
        """What is due now and then, each 200 ms: silent workers, outliers, those who wait, and clients that read slowly."""
        self.board.sweep(now_s)
        self.binder.changed()
        for attempt in self._attempts_open:
            attempt.read_ahead(now_s)

    async def close(self) -> None:
        """End what goes on beside the requests. No request is open."""
        await self.binder.close()
        await self.channels.close()

    async def generate(self, raw: bytes, timeout_s: float | None, edge_s: float = 0.0) -> AsyncGenerator[bytes]:
        """Pass a request to a worker and its messages back, all as bytes.

        Args: raw: a serialized GenerateRequest. timeout_s: what is left of the caller's deadline, in seconds. edge_s: how long
        the way between the caller and here takes, by the caller's word: what is left for the fleet is less by that.
        Raises: any error of ladr.v1.Router.Generate.
        """
        arrived_s = time.monotonic()
        first, first_s = b"", arrived_s
        model = "other"
        self.open += 1
        try:
            if self.open > self._settings.max_streams:
                raise Overloaded("the router has all the streams that it may have", retry_after=_RETRY_AFTER)
            head = request_head(raw)
            target = self.models.resolve(head.model, self._rng)
            model = target.model
            self._retries.request(arrived_s)
            self._hedges.request(arrived_s)
            request = Request(raw, head, head.request_id or self._make_id(), arrived_s)
            if timeout_s is not None:
                request.deadline_s = request.refuse_s = arrived_s + timeout_s
            if head.first_token_within_s is not None:
                refuse_s = arrived_s + head.first_token_within_s - edge_s
                request.refuse_s = min(refuse_s, request.refuse_s or refuse_s)
            trace.get_current_span().set_attributes(
                {"gen_ai.operation.name": "chat", "gen_ai.request.model": model, "ladr.request_id": request.id}
            )
            async with aclosing(self._answer(request, target)) as messages:
                async for message in messages:
                    kind = event_of(message)
                    if not request.answered and kind in (Event.DELTA, Event.FINISHED):
                        request.answered = True
                        first, first_s = message, time.monotonic()
                        self._sink.first_token(model, first_s - arrived_s, edge_s)
                    if kind is Event.FINISHED and (tokens := tokens_after(first, message)):
                        self._sink.finished(model, time.monotonic() - first_s, tokens)
                    yield message
            self._sink.ended(model, "ok")
        except LadrError as error:
            self._sink.ended(model, error.reason.lower())
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._sink.ended(model, "cancelled")
            raise
        finally:
            self.open -= 1

    def _answer(self, request: Request, target: Target) -> AsyncGenerator[bytes]:
        """The answer of a cascade, of a model, or of the first that can take the request."""
        if target.cascade:
            return self._cascade(request, target)
        return self._first_of(request, target) if target.fallbacks else self._attempts(request, target.model)

    async def _first_of(self, request: Request, target: Target) -> AsyncGenerator[bytes]:
        """The answer of the first model that can take the request."""
        for model, following in itertools.zip_longest((target.model, *target.fallbacks), target.fallbacks):
            if following is not None and not self.board.eligible(model, time.monotonic()):
                self._sink.fell_back(model, following)
                continue
            try:
                async with aclosing(self._attempts(request, model)) as messages:
                    async for message in messages:
                        yield message
                return
            except _ELSEWHERE:
                if following is None or request.transcript:
                    raise
                self._sink.fell_back(model, following)

    async def _cascade(self, request: Request, target: Target) -> AsyncGenerator[bytes]:
        """The student's answer if it is confident, else the teacher's. A student that fails is one that is not confident."""
        settings = self.models.cascade(target.cascade)
        listener = cascade.Listener(settings.tokens)
        student = request.asking_logprobs()
        async with aclosing(self._attempts(student, target.student)) as messages:
            try:
                async for message in messages:
                    if listener.hear(message):
                        break
            except (*_RETRIABLE, WorkerLost, InvalidRequest):  # also a prompt that the student has no room for
                listener.held.clear()
            confidence = listener.confidence if listener.held else None
            escalates = confidence is None or self._thresholds[target.cascade].escalates(confidence)
            self._sink.judged(target.student, confidence, escalates)
            if not escalates:
                student.answered = True
                for message in listener.held:
                    yield student.as_asked(message)
                async for message in messages:
                    yield student.as_asked(message)
                return
        request.attempts = student.attempts
        async with aclosing(self._answer(request, Target(target.model, target.fallbacks))) as messages:
            async for message in messages:
                yield message

    async def _attempts(self, request: Request, model: str) -> AsyncGenerator[bytes]:
        """The answer of one model, by as many workers as it takes."""
        tried: set[Row] = set()
        strict = False  # those that were tried would refuse it again
        failures = 0
        while True:
            had = len(request.transcript)
            asked: list[Row] = []
            try:
                async with aclosing(self._stream(request, model, tried, asked, strict)) as messages:
                    async for message in messages:
                        yield message
                return
            except _TakenBack:
                continue
            except LadrError as failure:
                error = failure
                if request.transcript and isinstance(
                    error, InvalidRequest
                ):  # it has room for the prompt, not for all of it
                    error = CannotResume("this worker has no room for the answer so far")
                strict = isinstance(error, _WILL_SAY_IT_AGAIN)
                progressed = len(request.transcript) > had
                failures = 1 if progressed else failures + 1
                tried = set(asked) if progressed else tried.union(asked)
                if not asked or not self._goes_on(request, model, error, failures, tried):
                    if request.transcript and isinstance(error, _LOST):
                        raise WorkerLost("the worker was lost, and no other could go on with the answer") from failure
                    raise
                self._tell(request, asked[-1], error)
            if failures > 1:
                first_s, longest_s = _BACKOFF_S
                await asyncio.sleep(self._rng.random() * min(first_s * 2**failures, longest_s))

    def _goes_on(self, request: Request, model: str, error: LadrError, failures: int, tried: set[Row]) -> bool:
        """Whether another worker is to be asked after a failure."""
        if not isinstance(error, _LOST if request.transcript else _RETRIABLE):
            return False
        if failures >= self._settings.max_attempts:
            return False
        now_s = time.monotonic()
        if isinstance(error, _WILL_SAY_IT_AGAIN) and all(row in tried for row in self.board.eligible(model, now_s)):
            return False
        return bool(request.transcript) or self._retries.retry(now_s)

    def _tell(self, request: Request, row: Row, error: LadrError) -> None:
        if request.transcript:
            self._sink.resumed(row.worker_id, error.reason, request.transcript.tokens())
        else:
            self._sink.retried(row.worker_id, error.reason, request.attempts)

    async def _stream(
        self, request: Request, model: str, tried: set[Row], asked: list[Row], strict: bool
    ) -> AsyncGenerator[bytes]:
        """Messages of one attempt, or of the first of two to answer. The workers are added to `asked`."""
        resumes = bool(request.transcript)
        ask = request.ask(self._expected(model, request))
        began_s = time.monotonic()
        lease = await self.binder.lease(request, model, ask, tried, strict)
        self._sink.waited(model, time.monotonic() - began_s)
        with ExitStack() as stack:

            def attempt(lease: Lease) -> Attempt:
                asked.append(lease.row)
                return stack.enter_context(self._attempt(request, model, lease))

            def second() -> Attempt | None:
                if not self._hedges.retry(time.monotonic()):
                    return None
                other = self.binder.bind(model, ask, tried.union(asked), only_fresh=True)
                return attempt(other) if other else None

            messages = first = attempt(lease)
            if self._settings.hedge_after > timedelta(0) and not resumes:
                after_s = self._settings.hedge_after.total_seconds()
                held, messages, hedged = await race(first, after_s, second)
                if hedged:
                    self._sink.hedged(messages is not first)
                for message in held:
                    if event_of(message) is Event.DELTA:
                        request.transcript.add(message)
                    yield message
            async for message in messages:
                kind = event_of(message)
                if kind is Event.STARTED:
                    if not self._keeps(request, messages):
                        raise _TakenBack
                elif resumes:
                    request.transcript.follows(message)
                    resumes = False
                if kind is Event.DELTA:
                    request.transcript.add(message)
                yield message
            self._answers[model].add(messages.lease.answer_tokens, time.monotonic())

    def _keeps(self, request: Request, attempt: Attempt) -> bool:
        """Whether a request stays where it was just taken, or is better picked for again because it would wait there."""
        row = attempt.lease.row
        if self.binder.main_policy.keeps(row, attempt.waiting) or request.taken_back == _MAX_TAKEN_BACK:
            return True
        request.taken_back += 1
        self._sink.taken_back(row.worker_id)
        return False

    def _attempt(self, request: Request, model: str, lease: Lease) -> Attempt:
        """A bound request on its way; what goes wrong is laid to its worker, or not."""
        return Attempt(
            lease,
            self.channels,
            request.to_worker(model),
            request.attempts,
            request.left_s(),
            lambda error: self._judge(lease, error, model),
            self._attempts_open,
        )

    def _judge(self, lease: Lease, error: LadrError, model: str) -> None:
        """What an error says about the worker, beside the request."""
        row = lease.row
        if lease.revoked:
            return  # its silence is known
        now_s = time.monotonic()
        if isinstance(error, Unreachable):
            row.unreachable(now_s)
        elif isinstance(error, Draining):
            row.drains()
        elif isinstance(error, NotFound):
            row.lacks(model)
        elif isinstance(error, EngineFailed):
            row.broke(now_s)

    def _expected(self, model: str, request: Request) -> float:
        """Tokens that the answer may be expected to have."""
        recent = self.answer_tokens(model)
        return min(recent, request.head.max_tokens) if recent else float(request.head.max_tokens)
