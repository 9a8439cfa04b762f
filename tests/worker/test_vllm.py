"""The vllm engine's translation, over a stand-in of vLLM's interface (tests/standins/vllm): vLLM itself was not run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import CannotResume, EngineFailed, PromptTooLong
from services.worker import engines
from services.worker.engine import Continuation, End, EngineRequest, Message, Piece, Sampling
from tests.engines import after, answer, text_of, tokens_of


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "standins"))
    (tmp_path / "llm").mkdir()
    yield engines.create(WorkerSettings(engine="vllm", model_root=tmp_path, slots=2, context_tokens=16))
    for name in [n for n in sys.modules if n == "vllm" or n.startswith(("vllm.", "services.worker.engines.vllm"))]:
        del sys.modules[name]


async def run(engine: Any, text: str, continuation: Continuation | None = None, **sampling: Any) -> list[Piece | End]:
    await engine.load(ModelSettings(name="m", source="llm"), lambda _: None)
    messages = (Message("user", text),)
    request = EngineRequest("same-id", "m", Sampling(**sampling), messages=messages, continuation=continuation)
    async with aclosing(engine.generate(request)) as events:
        return [event async for event in events]


async def test_deltas_become_pieces_and_the_end_of_turn_is_not_counted(engine: Any) -> None:
    *pieces, end = await run(engine, "one two <eos>")
    assert "".join(p.text for p in pieces) == " one two"
    assert sum(p.count for p in pieces) == sum(len(p.token_ids) for p in pieces) == 2
    assert end == End("stop", 4, 2, cached_prompt_tokens=2)


async def test_length_and_stop_strings_are_told_apart(engine: Any) -> None:
    *_, end = await run(engine, "one two three", max_tokens=2)
    assert (end.reason, end.completion_tokens) == ("length", 2)
    *_, end = await run(engine, "one halt three", stop=("halt",))
    assert (end.reason, end.stop_sequence) == ("stop_sequence", "halt")


@pytest.mark.parametrize(
    ("script", "sampling"),
    [
        ("one two three four <eos>", {}),
        ("one two three four", {"max_tokens": 3, "logprobs": 1}),
        ("one halt and stop five", {"stop": ["halt and stop"]}),
        ("one 0xF09F 0xA69C two <eos>", {"stop": ["🦜 three"]}),
    ],
)
async def test_an_answer_cut_anywhere_goes_on_as_if_undisturbed(
    engine: Any, script: str, sampling: dict[str, Any]
) -> None:
    await engine.load(ModelSettings(name="m", source="llm"), lambda _: None)
    asked = EngineRequest("same-id", "m", Sampling(**sampling), messages=(Message("user", script),))
    whole, end = await answer(engine, asked)
    for cut in range(len(whole) + 1):
        rest, same_end = await answer(engine, after(asked, whole[:cut]))
        assert tokens_of(rest) == tokens_of(whole[cut:])
        assert text_of(rest) == text_of(whole[cut:])
        assert same_end == replace(end, cached_prompt_tokens=same_end.cached_prompt_tokens)


async def test_without_token_ids_it_does_not_go_on(engine: Any) -> None:
    with pytest.raises(CannotResume):
        await run(engine, "one two", continuation=Continuation((), 1, " one"))


async def test_logprobs_are_passed_on(engine: Any) -> None:
    first, *_ = await run(engine, "one two", logprobs=1, max_tokens=1)
    assert first.logprobs[0].logprob == -0.5
    assert first.logprobs[0].top[0].token == "one"


async def test_an_engine_that_breaks_is_the_engines_fault_and_tells_no_address(engine: Any) -> None:
    with pytest.raises(EngineFailed) as failed:
        await run(engine, "one <broken>")
    assert "10.0.0.7" not in str(failed.value)


async def test_a_prompt_over_the_context_is_refused(engine: Any) -> None:
    with pytest.raises(PromptTooLong):
        await run(engine, "w " * 16)


async def test_two_requests_of_one_id_run_side_by_side_and_leaving_one_aborts_it(engine: Any) -> None:
    await engine.load(ModelSettings(name="m", source="llm"), lambda _: None)
    request = EngineRequest("same-id", "m", Sampling(), prompt="a b c d e f g h <eos>")
    first, second = engine.generate(request), engine.generate(request)
    await asyncio.gather(anext(first), anext(second))
    (inner,) = engine._engines.values()
    assert len(inner.running) == 2
    await first.aclose()
    await asyncio.sleep(0)
    assert len(inner.running) == 1
    await second.aclose()
    await engine.close()
    assert inner.down


async def test_code_beside_a_model_is_never_run_and_weights_are_safetensors(engine: Any) -> None:
    await engine.load(ModelSettings(name="m", source="llm"), lambda _: None)
    (inner,) = engine._engines.values()
    assert inner.args.trust_remote_code is False
    assert inner.args.load_format == "safetensors"
