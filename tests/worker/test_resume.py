"""Where an answer that another worker began stands, by its tokens and the text that the client has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engine import Continuation, End, EngineRequest, Piece, Sampling
from services.worker.resume import catch_up, lacking
from services.worker.text import AnswerText

END = 0
LIMIT = 9
STOP = "abc"


def decode(tokens: Sequence[int]) -> str:
    """Tokens are bytes, and END is nothing."""
    return bytes(token for token in tokens if token != END).decode("utf-8", "replace")


def caught_up(tokens: bytes, text: str) -> list[Piece | End]:
    told = Continuation(tuple(tokens), len(tokens), text)
    request = EngineRequest("r", "m", Sampling(stop=(STOP,)), continuation=told)
    return catch_up(AnswerText(decode, request.sampling.stop), request, 3, LIMIT, {END})


@pytest.mark.parametrize(
    ("tokens", "text", "events"),
    [
        (b"xya", "xy", []),
        ("x🦜".encode()[:3], "x", []),
        (b"xabc", "x", [End("stop_sequence", 3, 4, "abc")]),
        (b"xya\0", "xya", [End("stop", 3, 4)]),
        (b"xya\0", "xy", [Piece("a", (), 0), End("stop", 3, 4)]),
        (b"xya", "xya", [End("stop", 3, 3)]),
        (b"xxxxxxxab", "xxxxxxx", [Piece("ab", (), 0), End("length", 3, 9)]),
        (b"xxxxxxxab", "xxxxxxxab", [End("length", 3, 9)]),
        (b"xyz", "x", [Piece("yz", (), 0)]),
        (b"xyz", "other", []),
    ],
    ids=[
        "held back",
        "within a character",
        "stop string",
        "end token",
        "end token, and text was held back",
        "what was held back has been given out",
        "limit, and text was held back",
        "limit",
        "text is missing",
        "another text",
    ],
)
def test_the_client_gets_the_text_it_lacks_and_the_end_if_the_answer_was_complete(
    tokens: bytes, text: str, events: list[Piece | End]
) -> None:
    assert caught_up(tokens, text) == events


def test_a_new_answer_has_nothing_to_catch_up_with() -> None:
    assert catch_up(AnswerText(decode, ()), EngineRequest("r", "m", Sampling()), 3, LIMIT, {END}) == []


@given(st.text("ab"), st.text("ab"))
def test_what_is_lacking_completes_the_text(given: str, rest: str) -> None:
    assert given + lacking(given + rest, given) == given + rest
