"""Assembling characters and finding stop strings, each against a deliberately simple second implementation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import AnyStr

from hypothesis import given
from hypothesis import strategies as st

from services.worker.engine import TokenLogprob
from services.worker.text import AnswerText, StopScanner, Utf8Assembler, token_logprobs


def cut(whole: AnyStr, places: list[int]) -> list[AnyStr]:
    """`whole` in pieces, cut at the given places (modulo its length)."""
    edges = [0, *sorted(place % (len(whole) + 1) for place in places), len(whole)]
    return [whole[a:b] for a, b in pairwise(edges)]


def first_complete(text: str, stops: list[str]) -> tuple[str, str]:
    """What comes before the stop string that is complete first (the longest such), and that stop string."""
    for end in range(len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return text[:start], text[start:end]
    return text, ""


def scan(pieces: list[str], stops: list[str]) -> tuple[list[str], str]:
    scanner = StopScanner(stops)
    out = []
    for piece in pieces:
        certain, hit = scanner.feed(piece)
        out.append(certain)
        if hit:
            return out, hit
    return [*out, scanner.flush()], ""


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)))
def test_any_bytes_cut_anywhere_give_the_text_of_the_whole(data: bytes, places: list[int]) -> None:
    assembler = Utf8Assembler()
    text = "".join(assembler.feed(piece) for piece in cut(data, places)) + assembler.flush()
    assert text == data.decode("utf-8", "replace")


@given(st.text(st.sampled_from("aé€🦜👩🏽‍🚀"), max_size=20), st.lists(st.integers(0, 80)))
def test_no_character_is_ever_split(text: str, places: list[int]) -> None:
    assembler = Utf8Assembler()
    pieces = [assembler.feed(piece) for piece in cut(text.encode(), places)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert assembler.flush() == ""


def test_an_emoji_comes_out_whole_with_its_last_byte() -> None:
    assembler = Utf8Assembler()
    assert [assembler.feed(bytes([byte])) for byte in "🦜".encode()] == ["", "", "", "🦜"]


def test_a_character_that_never_becomes_whole_is_replaced_at_the_end() -> None:
    assembler = Utf8Assembler()
    assert assembler.feed("a🦜".encode()[:3]) == "a"
    assert assembler.flush() == "\ufffd"


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(0, 30)),
)
def test_scanning_agrees_with_looking_at_every_substring(text: str, stops: list[str], places: list[int]) -> None:
    out, hit = scan(cut(text, places), stops)
    assert ("".join(out), hit) == first_complete(text, stops)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_nothing_given_out_can_become_part_of_a_stop_string_and_nothing_else_is_held(
    text: str, stops: list[str]
) -> None:
    scanner = StopScanner(stops)
    given_out = ""
    for count, character in enumerate(text, 1):
        certain, hit = scanner.feed(character)
        given_out += certain
        if hit:
            break
        tails = [text[at:count] for at in range(count + 1)]
        longest = max(len(tail) for tail in tails if any(stop.startswith(tail) for stop in stops))
        assert given_out == text[: count - longest]


def test_text_after_a_stop_string_is_dropped() -> None:
    scanner = StopScanner(["END"])
    assert scanner.feed("one EN") == ("one ", "")
    assert scanner.feed("D two") == ("", "END")
    assert scanner.feed("three") == ("", "END")
    assert scanner.flush() == ""


def test_logprobs_of_an_upstream_become_tokens_with_as_many_rivals_as_were_asked_for() -> None:
    entry = {"id": 5, "token": "a", "logprob": -0.5, "top_logprobs": [{"id": 5, "token": "a", "logprob": -0.5}]}
    assert token_logprobs([entry], 0) == (TokenLogprob(5, "a", -0.5),)
    assert token_logprobs([entry], 1) == (TokenLogprob(5, "a", -0.5, (TokenLogprob(5, "a", -0.5),)),)


def bytes_as_text(tokens: Sequence[int]) -> str:
    """Tokens that are bytes."""
    return bytes(tokens).decode("utf-8", "replace")


@given(st.text(st.sampled_from("ab é€🦜"), max_size=30), st.lists(st.text("ab €", min_size=1, max_size=3), max_size=3))
def test_the_text_of_tokens_is_that_of_the_whole_up_to_a_stop_string(text: str, stops: list[str]) -> None:
    said = AnswerText(bytes_as_text, stops)
    out, stopped = said.replay(list(text.encode()))
    if not stopped:
        out += said.flush()
    assert (out, stopped) == first_complete(text, stops)


@given(st.text(st.sampled_from("ab é€🦜"), max_size=30), st.integers(0, 90))
def test_tokens_that_are_replayed_leave_the_text_where_it_was(text: str, place: int) -> None:
    tokens = list(text.encode())
    cut_at = place % (len(tokens) + 1)
    straight = AnswerText(bytes_as_text, ["b€", "ab🦜"])
    pieces = [straight.feed(token) for token in tokens]
    taken_over = AnswerText(bytes_as_text, ["b€", "ab🦜"])
    replayed, _ = taken_over.replay(tokens[:cut_at])
    assert replayed == "".join(out for out, _ in pieces[:cut_at])
    assert [taken_over.feed(token) for token in tokens[cut_at:]] == pieces[cut_at:]
    assert taken_over.flush() == straight.flush()


def test_bytes_that_never_become_a_character_are_given_out_and_decoded_in_short_windows() -> None:
    longest = 0

    def decode(tokens: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return bytes_as_text(tokens)

    said = AnswerText(decode, ())
    out, _ = said.replay([0xF0] * 1000 + list(b"end"))
    assert out.endswith("\ufffdend")
    assert longest < 20
