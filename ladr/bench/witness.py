"""What one answer is like, from its messages: when its tokens came, and whether any is missing or came twice."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ladr.errors import BrokenStream
from ladr.v1.generation_pb2 import GenerateResponse

_STARTED = b"\x0a"  # the event is the first field on the wire: its tag tells which it is


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request; times in seconds.

    Attributes:
        at_s: when it was meant to be sent, after the start of the run.
        late_s: how much later the generator sent it.
        ttft_s, e2e_s: from the intended time to the first token and to the end; None where it did not come to that.
        tpot_s: mean time of a token after the first; None below two tokens.
        reason: "" if it was answered, else the reason of its failure.
    """

    at_s: float
    late_s: float = 0.0
    ttft_s: float | None = None
    e2e_s: float | None = None
    tpot_s: float | None = None
    tokens: int = 0
    lost: int = 0
    repeated: int = 0
    resumed: bool = False
    reason: str = ""


class Witness:
    """Reads the messages of one stream. Offsets say what is lost or repeated, and `usage` says it of the end."""

    __slots__ = ("_broken", "_finished", "_first_s", "_last_s", "_lost", "_repeated", "_resumed", "_tokens")

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._last_s = 0.0
        self._tokens = 0
        self._lost = 0
        self._repeated = 0
        self._resumed = False
        self._finished = False
        self._broken = False

    def take(self, message: bytes, now_s: float) -> None:
        """The next message, which came at `now_s`."""
        self._broken |= self._finished
        if message[:1] == _STARTED:  # nothing in it is needed
            return
        try:
            response = GenerateResponse.FromString(message)
        except DecodeError:
            self._broken = True
            return
        kind = response.WhichOneof("event")
        if kind == "delta":
            self._delta(response.delta.offset, response.delta.token_count, now_s)
        elif kind == "finished":
            self._finished = True
            self._resumed = response.finished.resumed
            self._count(response.finished.usage.completion_tokens)

    def outcome(self, at_s: float, due_s: float, sent_s: float, end_s: float, failure: str = "") -> Outcome:
        """`at_s`: as in Outcome; the rest by the clock of `take`. `failure`: reason of the status that ended it, or ""."""
        reason = failure or ("" if self._finished and not self._broken else BrokenStream.reason)
        first_s = self._first_s
        return Outcome(
            at_s=at_s,
            late_s=sent_s - due_s,
            ttft_s=None if first_s is None else first_s - due_s,
            e2e_s=None if reason else end_s - due_s,
            tpot_s=(self._last_s - first_s) / (self._tokens - 1) if first_s is not None and self._tokens > 1 else None,
            tokens=self._tokens,
            lost=self._lost,
            repeated=self._repeated,
            resumed=self._resumed,
            reason=reason,
        )

    def _delta(self, offset: int, count: int, now_s: float) -> None:
        if offset > self._tokens:
            self._lost += offset - self._tokens
        else:
            self._repeated += min(count, self._tokens - offset)
        if count:
            self._first_s = now_s if self._first_s is None else self._first_s
            self._last_s = now_s
        self._tokens = max(self._tokens, offset + count)

    def _count(self, completion_tokens: int) -> None:
        """What the worker says that it generated, against what came."""
        self._lost += max(0, completion_tokens - self._tokens)
        self._repeated += max(0, self._tokens - completion_tokens)
