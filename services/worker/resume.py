"""What an engine checks before it answers: room in the context, and whether it can go on with an answer that another began."""

from __future__ import annotations

from collections.abc import Container

from ladr.errors import CannotResume, InvalidRequest, PromptTooLong
from services.worker.engine import End, EngineRequest, Piece
from services.worker.text import AnswerText


def answer_limit(request: EngineRequest, prompt_tokens: int, context: int) -> int:
    """Most tokens that the answer may have in all, those of a continuation included.

    Raises: PromptTooLong: the prompt fills the context. InvalidRequest: the continuation is longer than the answer can be.
    """
    room = context - prompt_tokens
    if room < 1:
        raise PromptTooLong(f"the prompt has {prompt_tokens} tokens, the model's context {context}", field="prompt")
    limit = min(request.sampling.max_tokens, room)
    if request.continuation and request.continuation.token_count > limit:
        raise InvalidRequest(
            f"the answer so far has {request.continuation.token_count} tokens, and {limit} fit",
            field="continuation.token_count",
        )
    return limit


def known_ids(request: EngineRequest, vocabulary: int) -> tuple[int, ...]:
    """Token ids of the continuation; empty without one, or where they are not told.

    Raises: InvalidRequest: an id is not in the vocabulary.
    """
    ids = request.continuation.token_ids if request.continuation else ()
    if max(ids, default=0) >= vocabulary:
        raise InvalidRequest(f"the model has token ids up to {vocabulary - 1}", field="continuation.token_ids")
    return ids


def needed_ids(request: EngineRequest, vocabulary: int) -> tuple[int, ...]:
    """The same, for an engine that goes on from ids alone.

    Raises: CannotResume: there are tokens, and their ids are not told. InvalidRequest: an id is not in the vocabulary.
    """
    ids = known_ids(request, vocabulary)
    if request.continuation and not ids:
        raise CannotResume("this worker goes on from token ids, and the answer so far has none")
    return ids


def catch_up(
    said: AnswerText, request: EngineRequest, prompt_tokens: int, limit: int, ends: Container[int]
) -> list[Piece | End]:
    """Bring a new `said` to where the client is; for engines that go on from ids alone.

    Gives text of its tokens that the client lacks, and the end if they are the whole answer: they complete a stop string, the
    last is one of `ends`, there are `limit` of them, or the client has text that is held back until then.
    """
    if request.continuation is None:
        return []
    given, count = request.continuation, request.continuation.token_count
    settled, stopped = said.replay(given.token_ids)
    end = None
    if stopped:
        end = End("stop_sequence", prompt_tokens, count, stopped)
    elif given.token_ids[-1] in ends:
        end = End("stop", prompt_tokens, count)
    elif count == limit:
        end = End("length", prompt_tokens, count)
    elif said.held and given.text == settled + said.held:  # which is given out at the end alone
        end = End("stop", prompt_tokens, count)
    if end:
        settled += said.flush()
    owed = lacking(settled, given.text)
    return [*([Piece(owed, (), 0)] if owed else []), *([end] if end else [])]


def lacking(whole: str, given: str) -> str:
    """What a client that has `given` lacks of `whole`; nothing where they differ."""
    return whole[len(given) :] if whole.startswith(given) else ""
