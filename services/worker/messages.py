"""From what the engine says to the messages that the client gets."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from opentelemetry import trace

from ladr.errors import LadrError
from ladr.v1 import generation_pb2
from services.worker.engine import End, Piece
from services.worker.outbox import Ended, Outbox
from services.worker.slots import Load

MAX_PIECES = 256  # in one message, so that a slow reader's stays far under any limit of sizes
_REASONS = {
    "stop": generation_pb2.FINISH_REASON_STOP,
    "length": generation_pb2.FINISH_REASON_LENGTH,
    "stop_sequence": generation_pb2.FINISH_REASON_STOP_SEQUENCE,
}


@dataclass
class Times:
    """When what happened to a request: monotonic seconds, 0 while it has not."""

    arrived_s: float
    slot_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


async def messages(outbox: Outbox, times: Times, offset: int = 0) -> AsyncIterator[generation_pb2.GenerateResponse]:
    """Deltas from token `offset` on, then `finished`; tokens that wait together go out as one delta.

    Raises: LadrError: the one that ended the answer.
    """
    resumed = offset > 0
    while True:
        events = await outbox.take()
        pieces = [event for event in events if isinstance(event, Piece)]
        for start in range(0, len(pieces), MAX_PIECES):
            for _, alike in itertools.groupby(pieces[start : start + MAX_PIECES], _aligned):
                delta = _delta(list(alike), offset)
                offset += delta.token_count
                yield generation_pb2.GenerateResponse(delta=delta)
        last = events[-1]
        if isinstance(last, LadrError):
            raise last
        if isinstance(last, Ended):
            _describe(last.end)
            yield generation_pb2.GenerateResponse(finished=_finished(last, times, resumed))
            return


def load_message(load: Load) -> generation_pb2.Load:
    return generation_pb2.Load(running=load.running, queued=load.queued, revision=load.revision)


def _aligned(piece: Piece) -> tuple[bool, bool]:
    """Whether each token has its id, and its log-probability: pieces of different kinds make different deltas."""
    return len(piece.token_ids) == piece.count, len(piece.logprobs) == piece.count


def _delta(pieces: Sequence[Piece], offset: int) -> generation_pb2.Delta:
    delta = generation_pb2.Delta(
        text="".join(piece.text for piece in pieces), offset=offset, token_count=sum(piece.count for piece in pieces)
    )
    for piece in pieces:
        delta.token_ids.extend(piece.token_ids)
        for one in piece.logprobs:
            delta.logprobs.add(
                token_id=one.token_id,
                token=one.token,
                logprob=one.logprob,
                top=[
                    generation_pb2.TokenLogprob(token_id=t.token_id, token=t.token, logprob=t.logprob) for t in one.top
                ],
            )
    return delta


def _finished(ended: Ended, times: Times, resumed: bool) -> generation_pb2.Finished:
    end = ended.end
    finished = generation_pb2.Finished(
        reason=_REASONS[end.reason],
        stop_sequence=end.stop_sequence,
        usage=generation_pb2.Usage(
            prompt_tokens=end.prompt_tokens,
            completion_tokens=end.completion_tokens,
            cached_prompt_tokens=end.cached_prompt_tokens,
        ),
        resumed=resumed,
        load=load_message(ended.load),
    )
    first_s = times.first_s or times.last_s  # an answer without a token
    finished.timings.queue.FromTimedelta(timedelta(seconds=times.slot_s - times.arrived_s))
    finished.timings.time_to_first_token.FromTimedelta(timedelta(seconds=first_s - times.arrived_s))
    finished.timings.total.FromTimedelta(timedelta(seconds=times.last_s - times.arrived_s))
    return finished


def _describe(end: End) -> None:
    """Put the usage on the span of the call."""
    trace.get_current_span().set_attributes(
        {
            "gen_ai.usage.input_tokens": end.prompt_tokens,
            "gen_ai.usage.output_tokens": end.completion_tokens,
            "gen_ai.response.finish_reasons": [end.reason],
        }
    )
