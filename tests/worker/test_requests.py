"""What a request may say, and what is said back when it may not."""

from __future__ import annotations

from typing import Any

import pytest

from ladr.errors import InvalidRequest
from ladr.v1 import generation_pb2
from services.worker.engine import Continuation, Message, Sampling
from services.worker.requests import engine_request


def request(**fields: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(**{"prompt": "hi", **fields})


def sampling(**fields: Any) -> generation_pb2.GenerateRequest:
    return request(sampling=generation_pb2.Sampling(**fields))


def test_a_plain_prompt_is_one_user_turn() -> None:
    assert engine_request(request(), "m").messages == (Message("user", "hi"),)


def test_a_raw_prompt_stays_as_it_is() -> None:
    asked = engine_request(request(raw=True), "m")
    assert (asked.messages, asked.prompt) == ((), "hi")


def test_absent_sampling_takes_the_documented_defaults() -> None:
    assert engine_request(request(), "m").sampling == Sampling(0.7, 1.0, 0, 512, (), None, None)


def test_zero_is_not_the_same_as_absent() -> None:
    asked = engine_request(sampling(temperature=0, seed=0, logprobs=0), "m").sampling
    assert (asked.temperature, asked.seed, asked.logprobs) == (0, 0, 0)


def so_far(ids: list[int], count: int, text: str, max_tokens: int = 4) -> generation_pb2.GenerateRequest:
    asked = sampling(max_tokens=max_tokens)
    asked.continuation.MergeFrom(generation_pb2.Continuation(token_ids=ids, token_count=count, text=text))
    return asked


def test_the_answer_so_far_comes_with_or_without_ids_and_may_be_the_whole_answer() -> None:
    assert engine_request(so_far([5, 6], 2, "ab"), "m").continuation == Continuation((5, 6), 2, "ab")
    assert engine_request(so_far([], 4, ""), "m").continuation == Continuation((), 4, "")


def test_an_answer_of_which_nothing_came_is_a_new_answer() -> None:
    assert engine_request(request(continuation=generation_pb2.Continuation()), "m").continuation is None


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (generation_pb2.GenerateRequest(), "prompt"),
        (request(messages=[generation_pb2.ChatMessage(role="user", content="x")]), "prompt"),
        (
            generation_pb2.GenerateRequest(messages=[generation_pb2.ChatMessage(role="User", content="x")]),
            "messages[0].role",
        ),
        (
            generation_pb2.GenerateRequest(raw=True, messages=[generation_pb2.ChatMessage(role="user", content="x")]),
            "raw",
        ),
        (sampling(temperature=2.1), "sampling.temperature"),
        (sampling(temperature=float("nan")), "sampling.temperature"),
        (sampling(temperature=-0.1), "sampling.temperature"),
        (sampling(top_p=0), "sampling.top_p"),
        (sampling(top_p=1.5), "sampling.top_p"),
        (sampling(top_p=float("nan")), "sampling.top_p"),
        (sampling(top_k=0), "sampling.top_k"),
        (sampling(top_k=1001), "sampling.top_k"),
        (sampling(max_tokens=0), "sampling.max_tokens"),
        (sampling(logprobs=21), "sampling.logprobs"),
        (sampling(stop=["a"] * 17), "sampling.stop"),
        (sampling(stop=["a", ""]), "sampling.stop[1]"),
        (sampling(stop=["é" * 129]), "sampling.stop[0]"),
        (so_far([1], 2, "ab"), "continuation.token_ids"),
        (so_far([1, 2, 3], 2, "ab"), "continuation.token_ids"),
        (so_far([1], 0, ""), "continuation.token_ids"),
        (so_far([], 5, "ab"), "continuation.token_count"),
        (so_far([], 2**64 - 1, "ab"), "continuation.token_count"),
        (so_far([], 0, "ab"), "continuation.text"),
        (request(fairness_key="x" * 129), "fairness_key"),
        (request(session_id="x" * 129), "session_id"),
        (request(request_id="x" * 129), "request_id"),
    ],
)
def test_a_wrong_field_is_named(asked: generation_pb2.GenerateRequest, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        engine_request(asked, "m")
    assert refused.value.field == field
