"""The way of a request: name, worker, stream; another worker before the first token, and one that goes on after it.

No server here: a Router process has it behind gRPC, a look-aside client in its own process.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection
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
from ladr.routing import cascade, orders, policies
from ladr.routing.attempt import Attempt
from ladr.routing.board import Scoreboard
from ladr.routing.budget import RetryBudget
from ladr.routing.channels import Channels
from ladr.routing.ema import Ema
from ladr.routing.lease import Lease
from ladr.routing.models import Models, Target
from ladr.routing.policies.least_request import LeastRequest
from ladr.routing.policy import Ask, Policy
from ladr.routing.prober import Prober
from ladr.routing.request import Request
from ladr.routing.row import Row
from ladr.routing.sink import Sink
from ladr.routing.waiting import PATIENCE_S, Room
from ladr.routing.wire import Event, event_of, request_head

_RETRY_AFTER = timedelta(seconds=1)
_BACKOFF_S = (0.01, 0.25)  # first and longest pause before another attempt; a random part of it is waited
_HEDGE_RESERVE = 2
_MAX_TAKEN_BACK = 16  # of one request
# Another worker may do better: the request had no fault.
_RETRIABLE = (Unreachable, Draining, NoWorker, NotFound, Overloaded, EngineFailed)
_LOST = (*_RETRIABLE, CannotResume, BrokenStream)  # after the first token also these
_RESUME_PATIENCE_S = 10.0  # how long a stream that was begun waits while there is no worker at all
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
        self.main_policy = policies.create(settings)
        self._fallback = LeastRequest()
        self._retries = RetryBudget(settings.retry_budget)
        self._hedges = RetryBudget(settings.hedge_budget, _HEDGE_RESERVE)
        self._rooms: dict[str, Room] = {}  # by model; only those in which somebody waits
        self._waiting = 0
        self._due = False  # the rooms are to be served in the next turn of the loop
        self._answers: defaultdict[str, Ema] = defaultdict(lambda: Ema(settings.theta))  # tokens an answer, by model
        self._thresholds = {
            name: cascade.Threshold(one.threshold, one.share) for name, one in settings.cascades.items()
        }
        self.board = Scoreboard(
            settings.theta,
            settings.ttl.total_seconds(),
            slow_start_s=settings.slow_start.total_seconds(),
            changed=self._row_changed,
        )
        self.models = Models(settings, self.board.knows, self.board.models)
        self.channels = Channels(settings.max_message_bytes)
        self.prober = Prober(self.channels)
        self.open = 0

    @property
    def waiting(self) -> int:
        """Requests that wait here for a worker."""
        return self._waiting

    def waiting_for(self, model: str) -> int:
        """Requests that wait here for a worker with this model."""
        return len(self._rooms[model]) if model in self._rooms else 0

    def waited_for(self) -> set[str]:
        """Models that somebody waits for."""
        return set(self._rooms)

    def answer_tokens(self, model: str) -> float:
        """Tokens of a model's recent answers; 0 before the first."""
        return self._answers[model].value or 0.0 if model in self._answers else 0.0

    def changed(self) -> None:
        """The board has news, or time has passed: see whether those who wait can be served."""
        if self._rooms and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._serve)

    def served(self, asked: str) -> str:
        """The served name behind a name that somebody asks for. Raises: as `Models.resolve`."""
        return self.models.resolve(asked, self._rng).model

    def policy(self, now_s: float) -> Policy:
        """The policy that picks now: by own counts alone while no reports come."""
        return self._fallback if self.board.blind(now_s) else self.main_policy

    async def close(self) -> None:
        """End what goes on beside the requests. No request is open."""
        await self.prober.close()
        await self.channels.close()

    async def generate(self, raw: bytes, timeout_s: float | None, edge_s: float = 0.0) -> AsyncGenerator[bytes]:
        """Pass a request to a worker and its messages back, all as bytes.

        Args: raw: a serialized GenerateRequest. timeout_s: what is left of the caller's deadline, in seconds. edge_s: how long
        the way between the caller and here takes, by the caller's word: what is left for the fleet is less by that.
        Raises: any error of ladr.v1.Router.Generate.
        """
        arrived_s = time.monotonic()
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
                    if not request.answered and event_of(message) in (Event.DELTA, Event.FINISHED):
                        request.answered = True
                        self._sink.first_token(model, time.monotonic() - arrived_s, edge_s)
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

    async def _answer(self, request: Request, target: Target) -> AsyncGenerator[bytes]:
        """The answer of a cascade, or of the first model that can take the request."""
        if target.cascade:
            async with aclosing(self._cascade(request, target)) as messages:
                async for message in messages:
                    yield message
            return
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
            except (*_RETRIABLE, InvalidRequest):  # also a prompt that the student has no room for
                listener.held.clear()
            confidence = listener.confidence if listener.held else None
            escalates = confidence is None or self._thresholds[target.cascade].escalates(confidence)
            self._sink.judged(target.student, confidence, escalates)
            if not escalates:
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
        failures = 0
        while True:
            had = len(request.transcript)
            asked: list[Row] = []
            try:
                async with aclosing(self._stream(request, model, tried, asked)) as messages:
                    async for message in messages:
                        yield message
                return
            except _TakenBack:
                continue
            except LadrError as error:
                progressed = len(request.transcript) > had
                failures = 1 if progressed else failures + 1
                tried = set(asked) if progressed else tried.union(asked)
                if not asked or not self._goes_on(request, model, error, failures, tried):
                    if request.transcript and isinstance(error, _LOST):
                        raise WorkerLost("the worker was lost, and no other could go on with the answer") from error
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
        if isinstance(error, Overloaded | CannotResume | BrokenStream):  # whoever said so will say it again
            return any(row not in tried for row in self.board.eligible(model, now_s))
        return bool(request.transcript) or self._retries.retry(now_s)

    def _tell(self, request: Request, row: Row, error: LadrError) -> None:
        if request.transcript:
            self._sink.resumed(row.worker_id, error.reason, request.transcript.tokens())
        else:
            self._sink.retried(row.worker_id, error.reason, request.attempts)

    async def _stream(self, request: Request, model: str, tried: set[Row], asked: list[Row]) -> AsyncGenerator[bytes]:
        """Messages of one attempt, or of the first of two to answer. The workers are added to `asked`."""
        resumes = bool(request.transcript)
        with ExitStack() as stack:
            lease = await self._lease(request, model, tried)
            messages = stack.enter_context(self._attempt(request, model, lease, asked))
            hedges = self._settings.hedge_after > timedelta(0) and not request.answered
            if hedges:
                held, messages = await self._race(request, model, messages, tried, asked, stack)
                for message in held:
                    yield self._passed(request, message)
            async for message in messages:
                if event_of(message) is Event.STARTED and not self._keeps(request, messages):
                    raise _TakenBack
                if resumes and event_of(message) is not Event.STARTED:
                    request.transcript.follows(message)
                    resumes = False
                yield self._passed(request, message)
            self._answers[model].add(messages.lease.answer_tokens, time.monotonic())

    def _keeps(self, request: Request, attempt: Attempt) -> bool:
        """Whether a request stays where it was just taken, or is better picked for again because it would wait there."""
        row = attempt.lease.row
        if self.main_policy.keeps(row, attempt.waiting) or request.taken_back == _MAX_TAKEN_BACK:
            return True
        request.taken_back += 1
        self._sink.taken_back(row.worker_id)
        return False

    def _passed(self, request: Request, message: bytes) -> bytes:
        if event_of(message) is Event.DELTA:
            request.transcript.add(message)
        return message

    def _attempt(self, request: Request, model: str, lease: Lease, asked: list[Row]) -> Attempt:
        """A bound request on its way; what goes wrong is laid to its worker, or not."""
        asked.append(lease.row)
        return Attempt(
            lease,
            self.channels,
            request.to_worker(model),
            request.attempts,
            request.left_s(),
            lambda error: self._judge(lease, error, model),
        )

    async def _race(
        self,
        request: Request,
        model: str,
        first: Attempt,
        tried: set[Row],
        asked: list[Row],
        stack: ExitStack,
    ) -> tuple[list[bytes], Attempt]:
        """Ask a second worker if the first says nothing for too long; gives the winner, and its messages to its first token."""
        runners = {asyncio.ensure_future(_to_first_token(first)): first}
        try:
            done, _ = await asyncio.wait(runners, timeout=self._settings.hedge_after.total_seconds())
            if not done and self._hedges.retry(time.monotonic()):
                lease = self._bind(
                    model, request.ask(self._expected(model, request)), tried.union(asked), only_fresh=True
                )
                if lease:
                    second = stack.enter_context(self._attempt(request, model, lease, asked))
                    runners[asyncio.ensure_future(_to_first_token(second))] = second
            while True:
                done, running = await asyncio.wait(runners, return_when=asyncio.FIRST_COMPLETED)
                winners = [one for one in done if one.exception() is None]
                if winners or not running:
                    break
                for one in done:
                    del runners[one]
            if len(asked) > 1:
                self._sink.hedged(bool(winners) and runners[winners[0]] is not first)
            one = winners[0] if winners else next(iter(done))
            return one.result(), runners[one]
        finally:
            for one in runners:
                one.cancel()
            await asyncio.gather(*runners, return_exceptions=True)

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

    async def _lease(self, request: Request, model: str, tried: set[Row]) -> Lease:
        """A place at a worker that was not tried yet, else at one that was; waits for it as long as it may.

        Raises: NoWorker, Overloaded, DeadlineExceeded.
        """
        ask = request.ask(self._expected(model, request))
        room = self._rooms.get(model)
        if room is None:
            lease = self._bind(model, ask, tried)
            if lease:
                return lease
            room = Room(
                orders.create(self._settings),
                lambda waiter: self._bind(model, waiter.ask, waiter.tried),
                lambda: bool(self.board.eligible(model, time.monotonic())),
            )
        if self._waiting >= self._settings.queue_limit:
            raise Overloaded("too many requests wait for a worker", retry_after=room.hint())
        now_s = time.monotonic()
        wait_s = room.wait_s()
        if request.refuse_s is not None and wait_s and now_s + wait_s > request.refuse_s and not request.transcript:
            raise Overloaded("the request would not be answered in time", retry_after=room.hint())
        self._rooms[model] = room
        self._waiting += 1
        try:
            waiter = request.waiter(ask, frozenset(tried), self._settings)
            patience_s = _RESUME_PATIENCE_S if request.transcript else PATIENCE_S
            return await room.lease(waiter, self._settings.queue_timeout.total_seconds(), patience_s)
        finally:
            self._waiting -= 1
            self._sink.waited(model, time.monotonic() - now_s)
            if not len(room):
                self._rooms.pop(model, None)

    def _bind(self, model: str, ask: Ask, tried: Collection[Row], only_fresh: bool = False) -> Lease | None:
        """A place at the worker that the policy picks now; None: it is better to wait, or there is nobody."""
        now_s = time.monotonic()
        rows = self.board.eligible(model, now_s)
        fresh = [row for row in rows if row not in tried] if tried else rows
        candidates = fresh if only_fresh else fresh or rows
        if not candidates:
            return None
        policy = self.policy(now_s)
        row = policy.pick(candidates, ask, self._rng, now_s)
        if row is None:
            return None
        self.prober.probe(policy.probes(candidates, self._rng), policy)
        return Lease(row, ask, self.main_policy, self._row_changed)

    def _row_changed(self, row: Row) -> None:
        self.main_policy.changed(row, self._rng)
        self.changed()

    def _serve(self) -> None:
        self._due = False
        for room in list(self._rooms.values()):
            room.serve()


async def _to_first_token(attempt: Attempt) -> list[bytes]:
    """Its messages up to the first token."""
    messages = []
    async for message in attempt:
        messages.append(message)
        if event_of(message) in (Event.DELTA, Event.FINISHED):
            break
    return messages
