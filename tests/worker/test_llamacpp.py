"""The llama.cpp engine with the bundled 135M model, in this process."""

from __future__ import annotations

import asyncio
import math
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import CannotResume, InvalidRequest, NotFound, PromptTooLong
from services.common.sources import locate
from services.worker import engines
from services.worker.engine import Continuation, EngineRequest, Message, Piece, Sampling
from services.worker.engines.gguf_header import read_header
from services.worker.engines.llamacpp import LlamaCppEngine
from tests.engines import after, answer, chat, raw, text_of
from tests.ports import listening

CANCEL_S = 0.25
BUNDLED = Path(*locate("", Path()))
FRANCE = "What is the capital of France? Tell me about it."
PARROTS = "Emoji list: 🦜🐉🏰🧙🤖🎃👻🦄🐙🦑 again: 🦜🐉🏰🧙🤖🎃👻🦄🐙🦑 again: 🦜🐉"


def serve(**settings: object) -> LlamaCppEngine:
    """An engine with the bundled model as `chat`."""
    engine = LlamaCppEngine(WorkerSettings.model_validate({"context_tokens": 512, **settings}))
    asyncio.run(engine.load(ModelSettings(name="chat"), lambda _: None))
    return engine


@pytest.fixture(scope="module")
def one() -> Iterator[LlamaCppEngine]:
    """An engine with one slot."""
    engine = serve(slots=1)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def four() -> Iterator[LlamaCppEngine]:
    """An engine with four slots."""
    engine = serve(slots=4)
    yield engine
    asyncio.run(engine.close())


async def test_a_chat_goes_through_the_models_own_template(one: LlamaCppEngine) -> None:
    turns = (Message("system", "You are brief."), Message("user", "Name a colour."))
    by_hand = (
        "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"
    )
    chat_pieces, chat_end = await answer(
        one, EngineRequest("test", "chat", Sampling(0.0, max_tokens=8), messages=turns)
    )
    raw_pieces, raw_end = await answer(one, raw(by_hand, max_tokens=8))
    assert text_of(chat_pieces) == text_of(raw_pieces) != ""
    assert chat_end.prompt_tokens == raw_end.prompt_tokens


async def test_an_answer_that_ends_by_itself_does_not_count_the_end_of_turn(one: LlamaCppEngine) -> None:
    turns = (Message("system", "Answer with one word."), Message("user", "Say yes"))
    pieces, end = await answer(one, EngineRequest("test", "chat", Sampling(0.0), messages=turns))
    assert (text_of(pieces), end.reason, end.completion_tokens) == ("Yes", "stop", 1)
    assert all(piece.token_ids for piece in pieces)


async def test_a_raw_prompt_is_continued_without_a_template(one: LlamaCppEngine) -> None:
    pieces, end = await answer(one, raw("The capital of France is", max_tokens=3))
    assert text_of(pieces).startswith(" Paris")
    assert end.prompt_tokens == 5


@pytest.mark.parametrize("limit", [1, 7])
async def test_max_tokens_ends_an_answer_with_length(one: LlamaCppEngine, limit: int) -> None:
    pieces, end = await answer(one, chat("Tell me a long story.", max_tokens=limit))
    assert (end.reason, end.completion_tokens, len(pieces)) == ("length", limit, limit)


async def test_the_context_ends_an_answer_with_length(one: LlamaCppEngine) -> None:
    pieces, end = await answer(one, raw("hello " * 500, max_tokens=4096, stop=("@@",)))
    assert end.reason == "length"
    assert end.prompt_tokens + end.completion_tokens == pytest.approx(512, abs=1)
    assert len(pieces) < 20


async def test_a_stop_string_ends_the_answer_and_no_part_of_it_is_given_out(one: LlamaCppEngine) -> None:
    whole, _ = await answer(one, chat("What is the capital of France?"))
    stop = text_of(whole)[6:13]
    pieces, end = await answer(one, chat("What is the capital of France?", stop=("never said", stop)))
    assert (end.reason, end.stop_sequence) == ("stop_sequence", stop)
    assert text_of(pieces) == text_of(whole).partition(stop)[0]
    assert end.completion_tokens < sum(piece.count for piece in whole)
    assert end.prompt_tokens > 10


async def test_text_held_as_the_beginning_of_a_stop_string_comes_at_the_end(one: LlamaCppEngine) -> None:
    whole, _ = await answer(one, raw("The capital of France is", max_tokens=1))
    last = text_of(whole)[-1]
    pieces, end = await answer(one, raw("The capital of France is", max_tokens=1, stop=(last + "@@",)))
    assert (text_of(pieces), end.reason) == (text_of(whole), "length")


async def test_an_emoji_of_several_tokens_is_never_split(one: LlamaCppEngine) -> None:
    pieces, end = await answer(one, raw(PARROTS, max_tokens=20))
    assert "🏰🧙🤖" in text_of(pieces)
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert end.completion_tokens == 20


@pytest.mark.parametrize("asked", [chat(FRANCE), raw("The capital of France is")])
async def test_an_answer_cut_between_words_goes_on_with_the_same_text(
    one: LlamaCppEngine, asked: EngineRequest
) -> None:
    whole, end = await answer(one, asked)
    text = text_of(whole)
    cuts = [n for n, piece in enumerate(whole) if n and piece.text.startswith(" ")]
    assert len(cuts) > 5
    for cut in cuts[::2]:
        rest, same_end = await answer(one, after(asked, whole[:cut]))
        assert text_of(whole[:cut]) + text_of(rest) == text
        assert (same_end.reason, same_end.completion_tokens) == (end.reason, end.completion_tokens)
        assert same_end.prompt_tokens == end.prompt_tokens


async def test_an_answer_cut_within_a_character_or_a_stop_string_says_it_whole(one: LlamaCppEngine) -> None:
    asked = raw(PARROTS, max_tokens=20)
    whole, _ = await answer(one, asked)
    told = Continuation((), whole[0].count + 1, whole[0].text)  # a part of the second emoji is among its tokens
    rest, end = await answer(one, replace(asked, continuation=told))
    assert (whole[0].text + text_of(rest)).startswith(text_of(whole[:4]))
    assert end.completion_tokens == 20
    held = chat(FRANCE, stop=("capital of France",))
    told = Continuation((), 3, "The ")  # " capital of" is among its tokens, and held back
    rest, end = await answer(one, replace(held, continuation=told))
    assert (text_of(rest), end.reason) == ("", "stop_sequence")
    rest, _ = await answer(one, replace(chat(FRANCE), continuation=told))
    assert text_of(rest).startswith("capital of France is Paris")


async def test_an_answer_that_was_complete_already_is_just_finished(one: LlamaCppEngine) -> None:
    asked = chat("Tell me a long story.", max_tokens=5)
    whole, end = await answer(one, asked)
    rest, same_end = await answer(one, after(asked, whole))
    assert (rest, same_end.reason, same_end.completion_tokens) == ([], "length", 5)
    assert same_end.prompt_tokens == end.prompt_tokens
    full = raw("hello " * 400, max_tokens=600)
    told = [Piece("hello " * 112, (), 112)]
    rest, end = await answer(one, after(full, told))
    assert (rest, end.reason, end.completion_tokens) == ([], "length", 112)


async def test_a_continuation_longer_than_the_context_is_refused(one: LlamaCppEngine) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await answer(one, after(raw("x", max_tokens=9999), [Piece("x", (), 600)]))
    assert refused.value.field == "continuation.token_count"


async def test_a_chat_goes_on_only_where_the_models_own_template_is_known(
    one: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one._models["chat"], "continues_chats", False)
    with pytest.raises(CannotResume):
        await answer(one, after(chat("hello"), [Piece("x")]))


async def test_a_chat_that_ends_with_a_turn_of_the_assistant_is_answered_with_another(one: LlamaCppEngine) -> None:
    turns = (Message("user", "What is the capital of France?"), Message("assistant", "Paris."))
    by_hand = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    by_hand += (
        "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"
    )
    sampling = Sampling(0.0, max_tokens=8)
    expected, _ = await answer(one, raw(by_hand, max_tokens=8))
    pieces, _ = await answer(one, EngineRequest("test", "chat", sampling, messages=turns))
    assert text_of(pieces) == text_of(expected)


@pytest.mark.parametrize("odd", ["a\0b", "\ufeff", "e\u0301\u200d\u202e", "👩🏽‍🚀", " ", "\r\n", "<|im_end|>"])
async def test_odd_text_is_taken_as_it_is(one: LlamaCppEngine, odd: str) -> None:
    for request in (chat(odd, max_tokens=2), raw(odd, max_tokens=2)):
        _, end = await answer(one, request)
        assert end.prompt_tokens > 0


async def test_an_empty_message_is_answered(one: LlamaCppEngine) -> None:
    _, end = await answer(one, chat("", max_tokens=2))
    assert end.completion_tokens == 2


async def test_a_prompt_longer_than_the_context_is_refused(one: LlamaCppEngine) -> None:
    for request in (chat("hello " * 600), raw("hello " * 600)):
        with pytest.raises(PromptTooLong, match="context 512"):
            await answer(one, request)


async def test_a_model_that_is_not_loaded_is_not_found(one: LlamaCppEngine) -> None:
    with pytest.raises(NotFound):
        await answer(one, EngineRequest("test", "other", Sampling(), prompt="x"))


async def test_the_same_seed_gives_the_same_answer_and_another_gives_another(one: LlamaCppEngine) -> None:
    seeds = (7, 7, 2**64 - 1)
    asked = [chat("Invent a name for a cat.", temperature=1.5, seed=seed) for seed in seeds]
    first, second, third = [text_of((await answer(one, request))[0]) for request in asked]
    assert first == second != third


async def test_logprobs_come_with_as_many_rivals_as_were_asked_for(one: LlamaCppEngine) -> None:
    for alternatives in (0, 3):
        pieces, _ = await answer(one, chat("Say yes.", max_tokens=4, logprobs=alternatives))
        for piece in pieces:
            (token,) = piece.logprobs
            assert (token.token_id,) == piece.token_ids
            assert token.logprob <= 0
            assert len(token.top) == alternatives
            assert sum(math.exp(rival.logprob) for rival in token.top) <= 1.001
    pieces, _ = await answer(one, chat("Say yes.", max_tokens=2))
    assert not any(piece.logprobs for piece in pieces)


async def test_a_prompt_read_before_is_found_in_the_cache(one: LlamaCppEngine) -> None:
    request = chat("A prompt that is long enough to be worth keeping: " + "hello " * 40, max_tokens=2)
    await answer(one, request)
    _, end = await answer(one, request)
    assert 40 < end.cached_prompt_tokens < end.prompt_tokens


@pytest.mark.parametrize("prompt", ["Tell me a long story.", "Say hello. " * 100], ids=["decode", "prefill"])
async def test_closing_stops_llama_cpp_within_250_ms(one: LlamaCppEngine, prompt: str) -> None:
    events = one.generate(chat(prompt, max_tokens=400))
    reading = asyncio.ensure_future(anext(events))
    if prompt.startswith("Tell"):
        await reading
    else:
        await asyncio.sleep(0.2)  # it reads the prompt for half a second and more
        assert not reading.done()
        reading.cancel()
        await asyncio.wait({reading})
    started = time.monotonic()
    await events.aclose()
    assert time.monotonic() - started < CANCEL_S
    assert one.gauges().kv_used_ratio == 0
    await answer(one, raw("x", max_tokens=1))
    assert time.monotonic() - started < 2 * CANCEL_S


async def test_four_at_once_share_the_batch_and_each_gets_its_own_answer(four: LlamaCppEngine) -> None:
    expected = {
        "The capital of France is": "Paris",
        "1 2 3 4 5 6 7 8": "9 1",
        "A B C D E F G": "H I",
        "Monday, Tuesday, Wednesday,": "Thursday",
    }
    running = [asyncio.create_task(answer(four, raw(prompt, max_tokens=8))) for prompt in expected]
    ratios = set()
    while not all(task.done() for task in running):
        ratios.add(four.gauges().kv_used_ratio or 0.0)
        await asyncio.sleep(0.01)
    for continued, task in zip(expected.values(), running, strict=True):
        assert continued in text_of(task.result()[0])
    assert max(ratios) > 0
    assert four.gauges().kv_used_ratio == 0


async def test_a_storm_of_cancellations_leaves_the_engine_whole(four: LlamaCppEngine) -> None:
    for wave in range(5):
        running = [asyncio.create_task(answer(four, chat(f"Story {n}", max_tokens=300))) for n in range(4)]
        await asyncio.sleep(0.03 * wave)
        for task in running:
            task.cancel()
        await asyncio.wait(running)
    assert four.gauges().kv_used_ratio == 0
    _, end = await answer(four, chat("Say yes.", max_tokens=3))
    assert end.completion_tokens >= 1


async def test_load_and_close_leave_no_thread_no_port_and_no_noise(capfd: pytest.CaptureFixture[str]) -> None:
    before, ports = set(threading.enumerate()), listening()
    engine = engines.create(WorkerSettings(slots=2, context_tokens=300))
    assert isinstance(engine, LlamaCppEngine)
    seen: list[float] = []
    assert await engine.load(ModelSettings(name="chat"), seen.append) == 512  # 300, rounded up
    assert await engine.load(ModelSettings(name="small", context_tokens=256), seen.append) == 256
    assert (seen[0], max(seen), seen[-1]) == (0.0, 1.0, 1.0)
    assert len(seen) > 10
    assert listening() == ports
    await engine.unload("small")
    await answer(engine, chat("hello", max_tokens=2))
    await engine.close()
    assert set(threading.enumerate()) <= before
    assert capfd.readouterr() == ("", "")


async def load_from(root: Path, source: str) -> int:
    engine = LlamaCppEngine(WorkerSettings(slots=1, context_tokens=256, model_root=root))
    try:
        return await engine.load(ModelSettings(name="chat", source=source), lambda _: None)
    finally:
        await engine.close()


async def test_a_file_under_the_model_root_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "model.gguf"
    file.parent.mkdir()
    shutil.copyfile(BUNDLED, file)
    assert await load_from(tmp_path, "deep/model.gguf") == 256
    assert await load_from(tmp_path, str(file)) == 256


@pytest.mark.parametrize("source", ["../secret.gguf", "link.gguf", "/etc/passwd", "a\0b", "loop", "x" * 5000, "."])
async def test_a_source_outside_the_model_root_is_refused(tmp_path: Path, source: str) -> None:
    root = tmp_path / "models"
    root.mkdir()
    (tmp_path / "secret.gguf").write_bytes(b"GGUF")
    (root / "link.gguf").symlink_to(tmp_path / "secret.gguf")
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(InvalidRequest) as refused:
        await load_from(root, source)
    assert refused.value.field == "source"
    assert str(tmp_path) not in refused.value.message


async def test_a_source_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await load_from(tmp_path, "none.gguf")


def header(*, magic: bytes = b"GGUF", version: int = 3, tensors: int = 1, pairs: int = 1, rest: bytes = b"") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, pairs) + rest


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        header(magic=b"GGML"),
        header(version=99),
        header(tensors=0),
        header(pairs=2**63),
        header(rest=struct.pack("<Q", 2**62)),
        header(rest=struct.pack("<Q", 1) + b"\xff" + struct.pack("<I", 4)),
        header(pairs=1, rest=struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77)),
        header(pairs=2, rest=struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**61)),
        BUNDLED.read_bytes()[: 4 << 20],
    ],
    ids=["empty", "short", "magic", "version", "tensors", "pairs", "key", "utf8", "type", "array", "cut"],
)
async def test_a_damaged_file_is_refused_quietly(
    tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(InvalidRequest) as refused:
        await load_from(tmp_path, "model.gguf")
    assert refused.value.field == "source"
    assert capfd.readouterr() == ("", "")


def test_context_and_chat_template_are_read_from_the_header() -> None:
    header = read_header(BUNDLED)
    assert header.context == 8192
    assert "<|im_start|>assistant" in header.chat_template
