"""One request on its way: what was asked, and what its client has by now."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta

from ladr.config import RouterSettings
from ladr.errors import LadrError, TooLate
from ladr.routing.cascade import without_logprobs
from ladr.routing.orders import Priority, class_of
from ladr.routing.policy import Ask
from ladr.routing.row import Row
from ladr.routing.transcript import Transcript
from ladr.routing.waiting import Waiter, passed
from ladr.routing.wire import Head
from ladr.v1 import generation_pb2

LONG_AGO_S = -1e9
_sequence = itertools.count()


def _too_late(hint: timedelta) -> LadrError:
    return TooLate("no worker was free in time for the first token", retry_after=hint)


@dataclass(eq=False)
class Request:
    """Times are monotonic seconds.

    Attributes:
        raw: the serialized GenerateRequest, as it came.
        deadline_s: when the call ends; None: never.
        refuse_s: when a first token would come too late to be of use; None: never.
        attempts: workers asked so far.
        answered: the client has its first token. Until then nothing is lost if the request fails.
        taken_back: how often it was taken out of a worker's queue.
    """

    raw: bytes
    head: Head
    id: str
    arrived_s: float
    deadline_s: float | None = None
    refuse_s: float | None = None
    attempts: int = 0
    answered: bool = False
    taken_back: int = 0
    strips: bool = False
    transcript: Transcript = field(default_factory=Transcript)

    def to_worker(self, model: str) -> bytes:
        """For the next worker: fields set again at the end win, so that the prompt is never decoded and encoded anew."""
        self.attempts += 1
        own = generation_pb2.GenerateRequest(model=model, request_id=self.id, attempt=self.attempts)
        if self.transcript:
            own.continuation.CopyFrom(self.transcript.continuation())
        return self.raw + own.SerializeToString()

    def ask(self, answer_tokens: float) -> Ask:
        """What a policy may know of it."""
        head = self.head
        return Ask(head.prompt_tokens, answer_tokens, head.session, head.prefix, self.arrived_s)

    def waiter(self, ask: Ask, tried: frozenset[Row], strict: bool, settings: RouterSettings) -> Waiter:
        """Its place among those who wait; an answer that was begun goes before all others."""
        if self.answered:
            return Waiter(
                sequence=next(_sequence),
                arrived_s=LONG_AGO_S,
                deadline_s=math.inf,
                priority=Priority.HIGH,
                ask=ask,
                tried=tried,
                strict=strict,
                refuse_s=self.deadline_s,
            )
        slo_s = self.arrived_s + settings.first_token_slo.total_seconds()
        return Waiter(
            sequence=next(_sequence),
            arrived_s=self.arrived_s,
            deadline_s=slo_s if self.refuse_s is None else min(slo_s, self.refuse_s),
            tokens=ask.prompt_tokens + ask.answer_tokens,
            key=self.head.fairness_key,
            priority=class_of(self.head.priority),
            ask=ask,
            tried=tried,
            strict=strict,
            refuse_s=self.refuse_s,
            refusal=passed if self.refuse_s == self.deadline_s else _too_late,
        )

    def left_s(self) -> float | None:
        """What is left of the deadline, in seconds."""
        return self.deadline_s - time.monotonic() if self.deadline_s is not None else None

    def asking_logprobs(self) -> Request:
        """The same request with log-probabilities, which `as_asked` takes out again if the client wants none."""
        if self.head.logprobs:
            return replace(self, transcript=Transcript())
        asks = generation_pb2.GenerateRequest(sampling=generation_pb2.Sampling(logprobs=0))
        return replace(self, raw=self.raw + asks.SerializeToString(), strips=True, transcript=Transcript())

    def as_asked(self, message: bytes) -> bytes:
        """A message as the client wants it."""
        return without_logprobs(message) if self.strips else message
