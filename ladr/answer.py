"""An answer put together from its events, with proof that nothing was lost or repeated. No network here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ladr.errors import BrokenStream
from ladr.v1.generation_pb2 import Delta, Finished, FinishReason, GenerateResponse, Started, Timings, Usage

Event: TypeAlias = Started | Delta | Finished


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    Attributes:
        text: what the model said.
        reason: "stop", "length" or "stop_sequence".
        usage: tokens of the prompt and of the answer.
        timings: where the time went, seen at the worker that finished.
        worker_id: the worker that finished it.
        model: the model's served name.
        request_id: the caller's, or the one made for it.
        token_ids: ids in the model's vocabulary; empty where an upstream does not give them.
        stop_sequence: the stop string that ended it, or "".
        attempts: how many workers it took.
        resumed: a worker went on with what another had begun.
    """

    text: str
    reason: str
    usage: Usage
    timings: Timings
    worker_id: str
    model: str
    request_id: str
    token_ids: tuple[int, ...]
    stop_sequence: str
    attempts: int
    resumed: bool


def reason_name(finished: Finished) -> str:
    """FINISH_REASON_STOP_SEQUENCE → "stop_sequence"; "unspecified" for a reason this client does not know."""
    if finished.reason not in FinishReason.values():
        return "unspecified"
    return FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_").lower()


class Assembly:
    """The events of one stream, in order. A stream is `started` (again at each new attempt), deltas, one `finished`.

    Attributes:
        started: the newest Started, or None before it.
        finished: the Finished, or None before it.
        tokens: how many tokens came.
    """

    def __init__(self) -> None:
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.tokens = 0
        self._texts: list[str] = []
        self._token_ids: list[int] = []

    def take(self, response: GenerateResponse) -> Event | None:
        """Check the next message and return its event; None for a kind that this client does not know.

        Raises: BrokenStream: tokens are missing, repeated or out of place.
        """
        if self.finished is not None:
            raise BrokenStream("an event came after the answer had finished")
        kind = response.WhichOneof("event")
        if kind == "started":
            self.started = response.started
            return response.started
        if kind == "delta":
            return self._delta(response.delta)
        if kind == "finished":
            self.finished = response.finished
            return response.finished
        return None

    def end(self) -> None:
        """The stream ended OK.

        Raises: BrokenStream: without `finished`.
        """
        if self.finished is None:
            raise BrokenStream(f"the stream ended after {self.tokens} tokens without `finished`")

    def answer(self) -> Answer:
        """The whole answer; only after `end`."""
        started = self.started or Started()
        finished = self.finished or Finished()
        return Answer(
            text="".join(self._texts),
            reason=reason_name(finished),
            usage=finished.usage,
            timings=finished.timings,
            worker_id=started.worker_id,
            model=started.model,
            request_id=started.request_id,
            token_ids=tuple(self._token_ids),
            stop_sequence=finished.stop_sequence,
            attempts=started.attempt,
            resumed=finished.resumed,
        )

    def _delta(self, delta: Delta) -> Delta:
        if delta.offset != self.tokens:
            what = "were lost" if delta.offset > self.tokens else "came twice"
            raise BrokenStream(
                f"tokens {what}: expected token {self.tokens}, got token {delta.offset}",
                metadata={"expected_offset": str(self.tokens), "offset": str(delta.offset)},
            )
        self.tokens += delta.token_count
        self._texts.append(delta.text)
        self._token_ids.extend(delta.token_ids)
        return delta
