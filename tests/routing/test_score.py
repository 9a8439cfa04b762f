"""Smoothing, score, weights and wire peeking: small pure pieces, each against a dumb second version."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladr.errors import InvalidRequest
from ladr.routing.ema import PERIOD_S, Ema
from ladr.routing.score import relative_latencies, score, weights
from ladr.routing.wire import MAX_CHAT_MESSAGES, Event, event_of, request_head
from ladr.v1 import generation_pb2

samples = st.lists(st.floats(0, 1e3), min_size=1, max_size=30)


@given(samples, st.floats(0, 0.99))
def test_samples_a_period_apart_are_smoothed_by_theta(values: list[float], theta: float) -> None:
    ema = Ema(theta)
    dumb = values[0]
    for index, value in enumerate(values):
        ema.add(value, index * PERIOD_S)
        dumb = value if index == 0 else theta * dumb + (1 - theta) * value
    assert ema.value is not None
    assert math.isclose(ema.value, dumb, rel_tol=1e-6, abs_tol=1e-6)


def test_a_faster_reporter_is_smoothed_over_the_same_time() -> None:
    slow, fast = Ema(0.7), Ema(0.7)
    for ema, every_s in ((slow, 0.2), (fast, 0.05)):
        ema.add(0.0, 0.0)
        for step in range(1, round(2 / every_s) + 1):
            ema.add(1.0, step * every_s)
    assert slow.value is not None
    assert fast.value is not None
    assert math.isclose(slow.value, fast.value, rel_tol=1e-9)


def test_no_sample_gives_no_value() -> None:
    assert Ema(0.7).value is None


def test_the_score_is_alpha_over_latency_plus_beta_over_one_and_queue() -> None:
    assert score(1.0, 0.0, 0.5, 0.5) == 1.0
    assert score(4.0, 3.0, 0.5, 0.5) == 0.25
    assert score(2.0, 1.0, 1.0, 3.0) == 2.0


@given(st.lists(st.one_of(st.none(), st.floats(1e-4, 1e3)), max_size=20))
def test_latencies_are_multiples_of_the_fastest_and_the_unknown_count_as_it(latencies: list[float | None]) -> None:
    relative = relative_latencies(latencies)
    known = [latency for latency in latencies if latency is not None]
    for given_s, got in zip(latencies, relative, strict=True):
        assert got >= 1.0
        assert got == (given_s / min(known) if given_s is not None else 1.0)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50))
def test_weights_sum_to_one_and_keep_the_order(scores: list[float]) -> None:
    shares = weights(scores)
    assert math.isclose(sum(shares), 1.0)
    by_score = [share for _, share in sorted(zip(scores, shares, strict=True))]
    assert by_score == sorted(shares)


events = st.one_of(
    st.builds(
        lambda worker, attempt: generation_pb2.GenerateResponse(
            started=generation_pb2.Started(worker_id=worker, attempt=attempt)
        ),
        st.text(max_size=20),
        st.integers(0, 9),
    ),
    st.builds(
        lambda text, ids, offset: generation_pb2.GenerateResponse(
            delta=generation_pb2.Delta(text=text, token_ids=ids, offset=offset)
        ),
        st.text(max_size=200),
        st.lists(st.integers(0, 2**32 - 1), max_size=20),
        st.integers(0, 2**40),
    ),
    st.builds(
        lambda reason: generation_pb2.GenerateResponse(finished=generation_pb2.Finished(reason=reason)),
        st.integers(0, 3),
    ),
    st.just(generation_pb2.GenerateResponse()),
)


@given(events)
def test_the_first_byte_tells_the_event(message: generation_pb2.GenerateResponse) -> None:
    decoded = message.WhichOneof("event") or "other"
    assert event_of(message.SerializeToString()).name.lower() == decoded


def test_bytes_that_hold_no_event_are_other() -> None:
    assert event_of(b"") is Event.OTHER
    assert event_of(b"\xff\xff") is Event.OTHER


@given(st.text(max_size=300), st.text(max_size=30), st.integers(1, 9))
def test_fields_appended_to_a_request_win_over_those_in_it(prompt: str, model: str, attempt: int) -> None:
    raw = generation_pb2.GenerateRequest(prompt=prompt, model="alias", session_id="s").SerializeToString()
    own = generation_pb2.GenerateRequest(model=model or "m", attempt=attempt).SerializeToString()
    merged = generation_pb2.GenerateRequest.FromString(raw + own)
    assert (merged.prompt, merged.model, merged.attempt, merged.session_id) == (prompt, model or "m", attempt, "s")


requests = st.builds(
    generation_pb2.GenerateRequest,
    model=st.text(max_size=20),
    prompt=st.text(max_size=200),
    request_id=st.text(max_size=20),
    session_id=st.text(max_size=20),
    raw=st.booleans(),
    attempt=st.integers(0, 2**32 - 1),
    messages=st.lists(
        st.builds(generation_pb2.ChatMessage, role=st.text(max_size=5), content=st.text(max_size=50)), max_size=5
    ),
    sampling=st.builds(generation_pb2.Sampling, temperature=st.floats(0, 2), seed=st.integers(0, 2**64 - 1)),
)


@given(st.lists(requests, min_size=1, max_size=3))
def test_the_head_of_a_request_is_what_decoding_it_gives(parts: list[generation_pb2.GenerateRequest]) -> None:
    data = b"".join(part.SerializeToString() for part in parts)
    decoded = generation_pb2.GenerateRequest.FromString(data)
    head = request_head(data)
    assert (head.model, head.request_id, head.session) == (decoded.model, decoded.request_id, decoded.session_id)
    size = len(decoded.prompt.encode()) + sum(m.ByteSize() for m in decoded.messages)
    assert abs(head.prompt_tokens - size / 4) <= 1 + size


@given(st.binary(max_size=60))
def test_what_is_no_request_is_refused_and_never_breaks_the_reader(data: bytes) -> None:
    try:
        request_head(data)
    except InvalidRequest:
        return


def test_a_hundred_thousand_empty_messages_are_refused_unread() -> None:
    message = generation_pb2.GenerateRequest(messages=[generation_pb2.ChatMessage()]).SerializeToString()
    assert request_head(message * MAX_CHAT_MESSAGES).model == ""
    for many in (MAX_CHAT_MESSAGES + 1, 100_000):
        with pytest.raises(InvalidRequest) as refused:
            request_head(message * many)
        assert refused.value.field == "messages"
