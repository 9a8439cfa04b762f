"""The OpenAI engine against llama.cpp's own HTTP server, and against a small server that misbehaves."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import xllamacpp

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import (
    CannotResume,
    EngineFailed,
    InvalidRequest,
    LadrError,
    NotFound,
    Overloaded,
    PromptTooLong,
    Unreachable,
)
from services.common.sources import locate
from services.worker import engines
from services.worker.engine import End, EngineRequest, Message, Piece, Sampling
from services.worker.engines.openai import OpenAIEngine
from tests.engines import after, answer, chat, raw, text_of

KEY = "sk-secret"
PARROTS = "Emoji list: 🦜🐉🏰🧙🤖🎃👻🦄🐙🦑 again: 🦜🐉🏰🧙🤖🎃👻🦄🐙🦑 again: 🦜🐉"


@pytest.fixture(scope="session")
def llama() -> Iterator[str]:
    """Base URL of llama.cpp's server with the bundled model, called `smol`, and one slot."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(Path(*locate("", Path())))
    parameters.model_alias = {"smol"}
    parameters.n_parallel, parameters.n_ctx = 1, 512
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.api_keys = [KEY]
    parameters.verbosity = -1
    parameters.warmup = parameters.ui = False
    server = xllamacpp.Server(parameters)
    yield f"{server.listening_address}/v1"
    del server


@asynccontextmanager
async def serve(base_url: str, source: str = "smol", key: str = KEY) -> AsyncIterator[OpenAIEngine]:
    """An engine with the upstream's model `source` as `chat`."""
    engine = engines.create(
        WorkerSettings.model_validate(
            {"engine": "openai", "openai": {"base_url": base_url, "api_key": key, "connect_timeout": "1s"}}
        )
    )
    assert isinstance(engine, OpenAIEngine)
    try:
        await engine.load(ModelSettings(name="chat", source=source), lambda _: None)
        yield engine
    finally:
        await engine.close()


async def test_loading_tells_the_upstreams_context_or_the_configured_one(llama: str) -> None:
    seen: list[float] = []
    async with serve(llama) as engine:
        assert await engine.load(ModelSettings(name="chat", source="smol"), seen.append) == 512
        assert await engine.load(ModelSettings(name="smol", context_tokens=100), seen.append) == 100
    assert seen == [0.0, 1.0, 0.0, 1.0]


async def test_a_model_that_the_upstream_does_not_have_is_not_found(llama: str) -> None:
    with pytest.raises(NotFound):
        async with serve(llama, source="other"):
            pass


async def test_a_raw_prompt_and_a_chat_are_answered_to_the_limit(llama: str) -> None:
    async with serve(llama) as engine:
        pieces, end = await answer(engine, raw("The capital of France is", max_tokens=3))
        assert text_of(pieces).startswith(" Paris")
        assert end == End("length", 5, 3)
        pieces, end = await answer(engine, chat("What is the capital of France?", max_tokens=1))
        assert (len(pieces), end.reason, end.completion_tokens) == (1, "length", 1)
        assert end.prompt_tokens > 10


async def test_an_answer_that_ends_by_itself_does_not_count_the_end_of_turn(llama: str) -> None:
    turns = (Message("system", "Answer with one word."), Message("user", "Say yes"))
    async with serve(llama) as engine:
        pieces, end = await answer(engine, EngineRequest("test", "chat", Sampling(0.0), messages=turns))
    assert (text_of(pieces), end.reason, end.completion_tokens) == ("Yes", "stop", 1)


async def test_a_stop_string_ends_the_answer_and_frees_the_upstream(llama: str) -> None:
    async with serve(llama) as engine:
        whole, _ = await answer(engine, chat("Tell me a long story."))
        stop = text_of(whole)[10:17]
        pieces, end = await answer(engine, chat("Tell me a long story.", max_tokens=450, stop=("never said", stop)))
        assert (end.reason, end.stop_sequence) == ("stop_sequence", stop)
        assert text_of(pieces) == text_of(whole).partition(stop)[0]
        assert end.completion_tokens == sum(piece.count for piece in pieces)
        started = time.monotonic()
        await answer(engine, raw("x", max_tokens=1))  # the rest of the story would take seconds
        assert time.monotonic() - started < 1


async def test_closing_the_stream_frees_the_upstream(llama: str) -> None:
    async with serve(llama) as engine:
        events = engine.generate(chat("Tell me a long story.", max_tokens=450))
        await anext(events)
        started = time.monotonic()
        await events.aclose()
        assert time.monotonic() - started < 0.25
        await answer(engine, raw("x", max_tokens=1))
        assert time.monotonic() - started < 1


async def test_an_emoji_of_several_tokens_is_never_split_and_counts_as_several(llama: str) -> None:
    async with serve(llama) as engine:
        pieces, end = await answer(engine, raw(PARROTS, max_tokens=20))
    assert "🏰🧙🤖" in text_of(pieces)
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert sum(piece.count for piece in pieces) == end.completion_tokens == 20


async def test_the_same_seed_gives_the_same_answer(llama: str) -> None:
    async with serve(llama) as engine:
        texts = [
            text_of((await answer(engine, chat("Invent a name.", temperature=1.5, seed=seed)))[0])
            for seed in (2**63, 2**63, 2**63 + 1)
        ]
    assert texts[0] == texts[1] != texts[2]


async def test_logprobs_come_with_as_many_rivals_as_were_asked_for(llama: str) -> None:
    async with serve(llama) as engine:
        for request in (chat("Say yes.", max_tokens=3, logprobs=2), raw("1 2 3 4", max_tokens=3, logprobs=2)):
            pieces, _ = await answer(engine, request)
            (token,) = pieces[0].logprobs
            assert token.token == pieces[0].text
            assert token.token_id > 0
            assert len(token.top) == 2
            assert 0 < sum(math.exp(rival.logprob) for rival in token.top) <= 1.001


async def test_a_prompt_longer_than_the_context_is_refused(llama: str) -> None:
    async with serve(llama) as engine:
        with pytest.raises(PromptTooLong):
            await answer(engine, chat("hello " * 600))


async def test_a_wrong_key_is_the_engines_fault_and_is_not_told(llama: str) -> None:
    with pytest.raises(EngineFailed) as failed:
        async with serve(llama, key="sk-wrong"):
            pass
    assert "sk-" not in failed.value.message


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def upstream(reply: Handler | bytes, owner: str = "") -> AsyncIterator[tuple[OpenAIEngine, dict[str, Any]]]:
    """An engine before a server that lists the model `m` and gives `reply` to what else it is asked; the last body asked."""
    asked: dict[str, Any] = {}

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        try:
            if head.startswith(b"GET /v1/models "):
                models = json.dumps({"data": [{"id": "m", "owned_by": owner, "max_model_len": 99}]}).encode()
                writer.write(response(models))
            else:
                length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                asked.update(json.loads(await reader.readexactly(length)))
                if isinstance(reply, bytes):
                    writer.write(reply)
                else:
                    await reply(reader, writer)
            await writer.drain()
        finally:
            writer.close()

    async with await asyncio.start_server(serve_one, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with serve(f"http://127.0.0.1:{port}/v1/", source="m") as engine:
            yield engine, asked


def response(body: bytes, status: str = "200 OK", *headers: str, cut: bool = False) -> bytes:
    """An HTTP response; `cut` promises one byte more than there is."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) + cut}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def sse(*events: object) -> bytes:
    return b"".join(
        b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n" for event in events
    )


def delta(text: str, reason: str | None = None, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason, **more}]}


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        ("400 Bad Request", b'{"error":{"code":"context_length_exceeded"}}', PromptTooLong),
        ("400 Bad Request", b'{"message":"This model\'s maximum context length is 99 tokens"}', PromptTooLong),
        ("400 Bad Request", b"\xff not json", InvalidRequest),
        ("404 Not Found", b"", InvalidRequest),
        ("401 Unauthorized", b"", EngineFailed),
        ("429 Too Many Requests", b"", Overloaded),
        ("503 Service Unavailable", b"", Overloaded),
        ("500 Internal Server Error", b"", EngineFailed),
        ("302 Found", b"", EngineFailed),
    ],
)
async def test_a_refusal_becomes_an_error_that_tells_neither_address_nor_key(
    status: str, body: bytes, expected: type[LadrError]
) -> None:
    async with upstream(response(body, status, "Retry-After: 7", "Location: http://elsewhere")) as (engine, _):
        with pytest.raises(LadrError) as failed:
            await answer(engine, chat("hello"))
    assert type(failed.value) is expected
    assert "127.0.0.1" not in failed.value.message
    assert KEY not in failed.value.message
    assert failed.value.retry_after == (timedelta(seconds=7) if expected is Overloaded else None)


async def test_an_answer_that_another_began_is_given_up_before_the_upstream_is_asked() -> None:
    async with upstream(response(sse(delta("a", "stop")))) as (engine, asked):
        with pytest.raises(CannotResume):
            await answer(engine, after(chat("hello"), [Piece("a", (5,))]))
        assert not asked
        await answer(engine, chat("hello"))
        assert asked


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"not http\r\n\r\n",
        response(sse(delta("a"), {"error": {"message": "out of memory"}})),
        response(sse(delta("a"))),
        response(sse(delta("a"), delta("", "stop"), b"[DONE]"), cut=True)[:-20],
        response(sse(b"{not json")),
        response(sse(b"[1]")),
        response(sse({"choices": 5})),
        response(sse({"choices": [{"delta": {"content": 5}}]})),
        response(b"data: " + b"x" * (2 << 20)),
    ],
    ids=[
        "silent",
        "no-http",
        "error-event",
        "no-end",
        "cut",
        "no-json",
        "no-object",
        "no-choices",
        "no-text",
        "long-line",
    ],
)
async def test_an_upstream_that_breaks_off_or_talks_nonsense_is_a_failed_engine(reply: bytes) -> None:
    async with upstream(reply) as (engine, _):
        with pytest.raises(EngineFailed) as failed:
            await answer(engine, chat("hello"))
    assert "127.0.0.1" not in failed.value.message


async def test_an_upstream_that_is_gone_is_unreachable() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(Unreachable) as failed:
        async with serve(f"http://127.0.0.1:{port}/v1"):
            pass
    assert str(port) not in failed.value.message


async def test_an_upstream_that_does_not_list_models_is_a_failed_engine() -> None:
    async def nonsense(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b'{"data": 5}'))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(nonsense, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EngineFailed):
            async with serve(f"http://127.0.0.1:{port}/v1"):
                pass


async def test_usage_overrides_the_count_of_chunks() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}
    async with upstream(response(sse(delta("many words"), delta("", "length"), usage, b"[DONE]"))) as (engine, asked):
        pieces, end = await answer(engine, chat("hello", max_tokens=9, top_k=5, seed=1))
    assert end == End("length", 3, 9)
    assert sum(piece.count for piece in pieces) == 9
    assert asked["stream_options"] == {"include_usage": True}
    assert (asked["model"], asked["top_k"], asked["seed"], asked["max_tokens"]) == ("m", 5, 1, 9)
    assert "return_token_ids" not in asked


async def test_token_ids_are_asked_of_vllm_and_passed_on() -> None:
    events = [delta("ab", token_ids=[1, 2]), delta("c", token_ids=[3]), delta("", "stop", token_ids=[0]), b"[DONE]"]
    async with upstream(response(sse(*events)), owner="vllm") as (engine, asked):
        pieces, end = await answer(engine, chat("hello"))
    assert [(piece.text, piece.token_ids, piece.count) for piece in pieces] == [("ab", (1, 2), 2), ("c", (3,), 1)]
    assert end.completion_tokens == 3
    assert asked["return_token_ids"] is True


async def test_logprobs_of_old_completions_are_read_too() -> None:
    told = {"tokens": [" a"], "token_logprobs": [-0.5], "top_logprobs": [{" a": -0.5, " b": -1.5}]}
    event = {"choices": [{"text": " a", "logprobs": told, "finish_reason": "stop"}]}
    async with upstream(response(sse(event, b"[DONE]"))) as (engine, _):
        pieces, _end = await answer(engine, raw("hello", logprobs=2))
    (token,) = pieces[0].logprobs
    assert (token.token, token.logprob) == (" a", -0.5)
    assert [(rival.token, rival.logprob) for rival in token.top] == [(" a", -0.5), (" b", -1.5)]


async def test_text_held_as_the_beginning_of_a_stop_string_comes_at_the_end() -> None:
    async with upstream(response(sse(delta("one EN"), delta("", "stop"), b"[DONE]"))) as (engine, _):
        pieces, end = await answer(engine, chat("hello", stop=("END",)))
    assert (text_of(pieces), end.reason, end.completion_tokens) == ("one EN", "stop", 1)


async def test_events_cut_anywhere_by_the_network_are_whole() -> None:
    data = response(sse(delta("🦜"), delta("é", "stop"), b"[DONE]"))

    async def byte_by_byte(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    async with upstream(byte_by_byte) as (engine, _):
        pieces, _end = await answer(engine, chat("hello"))
    assert text_of(pieces) == "🦜é"


async def test_closing_the_generator_closes_the_stream() -> None:
    closed = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + sse(delta("a")))
        await writer.drain()
        await reader.read()
        closed.set()

    async with upstream(endless) as (engine, _):
        events = engine.generate(chat("hello"))
        assert await anext(events) == Piece("a")
        await events.aclose()
        async with asyncio.timeout(1):
            await closed.wait()
