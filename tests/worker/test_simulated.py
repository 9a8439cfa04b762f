"""The simulated engine: what it says, and when."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from ladr.config import ConfigError, ModelSettings, WorkerSettings
from ladr.errors import EngineFailed, NotFound, PromptTooLong
from services.worker import engines
from services.worker.engine import End, EngineRequest, Message, Piece, Sampling
from services.worker.engines.simulated import SimulatedEngine
from tests.engines import answer, text_of

STEP_S = 0.005
PROMPT = "What does the river do?"


@asynccontextmanager
async def serve(slots: int = 4, context: int = 2048, **simulated: object) -> AsyncIterator[SimulatedEngine]:
    engine = engines.create(
        WorkerSettings.model_validate(
            {
                "engine": "simulated",
                "slots": slots,
                "context_tokens": context,
                "simulated": {"step": STEP_S, "prefill_tokens_per_s": 1e6, **simulated},
            }
        )
    )
    assert isinstance(engine, SimulatedEngine)
    await engine.load(ModelSettings(name="chat"), lambda _: None)
    try:
        yield engine
    finally:
        await engine.close()


def ask(prompt: str = PROMPT, **sampling: object) -> EngineRequest:
    return EngineRequest("test", "chat", Sampling(**sampling), prompt=prompt)  # type: ignore[arg-type]


async def test_an_answer_is_the_same_alone_and_in_company() -> None:
    async with serve(answer_sigma=0.5) as engine:
        alone = await answer(engine, ask())
        company = await asyncio.gather(*(answer(engine, ask(prompt)) for prompt in (PROMPT, "a", "b", PROMPT)))
    assert company[0] == company[3] == alone
    assert company[1] != company[2]


async def test_an_answer_depends_on_seed_prompt_and_position_alone() -> None:
    async with serve(seed=1) as one, serve(slots=1, seed=2) as other:
        assert await answer(one, ask(seed=5)) == await answer(other, ask(seed=5))
        assert await answer(one, ask()) != await answer(other, ask())
        long, _ = await answer(one, ask(max_tokens=60))
        short, _ = await answer(one, ask(max_tokens=20))
    assert [piece.token_ids for piece in long[:20]] == [piece.token_ids for piece in short]


async def test_messages_and_a_prompt_are_both_answered() -> None:
    turns = (Message("system", "x" * 400), Message("user", PROMPT))
    async with serve() as engine:
        _, end = await answer(engine, EngineRequest("test", "chat", Sampling(max_tokens=2), messages=turns))
        assert end.prompt_tokens > 100
        _, end = await answer(engine, ask("", max_tokens=2))
        assert end.prompt_tokens == 1


async def test_lengths_are_log_normal_about_the_median() -> None:
    async with serve(slots=64, answer_tokens=20, answer_sigma=0.5, step=0.0005) as engine:
        ends = [end for _, end in await asyncio.gather(*(answer(engine, ask(f"{n}")) for n in range(64)))]
    lengths = sorted(end.completion_tokens for end in ends)
    assert {end.reason for end in ends} == {"stop"}
    assert 15 <= lengths[32] <= 27
    assert lengths[0] < 12
    assert lengths[-1] > 35


async def test_max_tokens_and_context_end_an_answer_with_length() -> None:
    async with serve(context=30) as engine:
        for limit, expected in ((1, 1), (10, 10), (500, 25)):
            _, end = await answer(engine, ask("x" * 20, max_tokens=limit))
            assert end == End("length", 5, expected)


async def test_emojis_are_never_split_and_leave_pieces_without_text() -> None:
    async with serve(answer_tokens=300, step=0.0005) as engine:
        pieces, _ = await answer(engine, ask())
    assert "🦜" in text_of(pieces)
    assert "\ufffd" not in text_of(pieces)
    assert any(piece.text == "" for piece in pieces)


async def test_a_stop_string_ends_the_answer_and_no_part_of_it_is_given_out() -> None:
    async with serve() as engine:
        whole, _ = await answer(engine, ask())
        stop = text_of(whole)[20:26]
        pieces, end = await answer(engine, ask(stop=("@@", stop)))
        assert (end.reason, end.stop_sequence) == ("stop_sequence", stop)
        assert text_of(pieces) == text_of(whole).partition(stop)[0]
        held, end = await answer(engine, ask(stop=(text_of(whole)[-3:] + "@",)))
        assert (text_of(held), end.reason) == (text_of(whole), "stop")


async def test_logprobs_are_those_of_a_distribution() -> None:
    async with serve() as engine:
        for alternatives in (0, 1, 5):
            pieces, _ = await answer(engine, ask(max_tokens=30, logprobs=alternatives))
            for piece in pieces:
                (token,) = piece.logprobs
                assert (token.token_id,) == piece.token_ids
                assert len(token.top) == alternatives
                assert sum(math.exp(rival.logprob) for rival in token.top) < 1
        assert not any(piece.logprobs for piece in (await answer(engine, ask(max_tokens=3)))[0])


async def test_a_prompt_as_long_as_the_context_is_refused() -> None:
    async with serve(context=100) as engine:
        await answer(engine, ask("x" * 396, max_tokens=1))
        with pytest.raises(PromptTooLong):
            await answer(engine, ask("x" * 400))


async def test_a_model_that_is_not_loaded_is_not_found() -> None:
    async with serve() as engine:
        await engine.unload("chat")
        with pytest.raises(NotFound):
            await answer(engine, ask())


async def failures(seed: int) -> list[bool]:
    async with serve(fail_ratio=0.3, seed=seed) as engine:
        results = await asyncio.gather(*(answer(engine, ask(max_tokens=1)) for _ in range(40)), return_exceptions=True)
    assert all(isinstance(result, tuple | EngineFailed) for result in results)
    return [isinstance(result, EngineFailed) for result in results]


async def test_a_share_of_requests_fails_the_same_with_the_same_seed() -> None:
    first = await failures(seed=1)
    assert 4 < sum(first) < 20
    assert first == await failures(seed=1) != await failures(seed=2)


async def timed(engine: SimulatedEngine, batch: int, tokens: int) -> float:
    """Seconds that `batch` answers of so many tokens take together."""
    started = time.monotonic()
    await asyncio.gather(*(answer(engine, ask(f"{n}", max_tokens=tokens)) for n in range(batch)))
    return time.monotonic() - started


def on_time(took_s: float, expected_s: float) -> bool:
    """Never early, and late by no more than a busy machine explains."""
    return 0.98 * expected_s <= took_s < 1.1 * expected_s + 0.1


@pytest.mark.parametrize(("batch", "factor"), [(1, 1.0), (3, 2.0), (5, 3.0)])
async def test_a_step_grows_with_the_batch(batch: int, factor: float) -> None:
    async with serve(slots=5, growth=2.0) as engine:
        took_s = await timed(engine, batch, 40)
    assert on_time(took_s, 40 * STEP_S * factor)


async def test_with_one_slot_a_step_does_not_grow() -> None:
    async with serve(slots=1, growth=9.0) as engine:
        assert on_time(await timed(engine, 1, 40), 40 * STEP_S)


async def test_the_prompt_is_read_before_the_first_token() -> None:
    async with serve(prefill_tokens_per_s=1000) as engine:
        started = time.monotonic()
        async with aclosing(engine.generate(ask("x" * 400))) as events:
            await anext(events)
        assert on_time(time.monotonic() - started, 0.1 + STEP_S)


async def test_many_streams_keep_the_pace_at_little_cost() -> None:
    async with serve(slots=32, growth=0, step=0.02) as engine:
        before_s = time.process_time()
        took_s = await timed(engine, 32, 50)
        spent_s = time.process_time() - before_s
    assert on_time(took_s, 1)
    assert spent_s < 0.4


async def test_a_busy_loop_gets_what_is_due_and_no_more() -> None:
    async with serve(growth=0) as engine:
        started = time.monotonic()
        seen = 0
        async with aclosing(engine.generate(ask(max_tokens=60))) as events:
            async for event in events:
                if isinstance(event, Piece):
                    seen += 1
                    assert seen <= (time.monotonic() - started) / STEP_S + 1
                if seen == 5:
                    time.sleep(0.1)  # noqa: ASYNC251  # a blocked event loop is what is tested
        assert on_time(time.monotonic() - started, 60 * STEP_S)


async def test_closing_or_cancelling_frees_the_place_at_once() -> None:
    async with serve(slots=1, context=1000) as engine:
        events = engine.generate(ask("x" * 400))
        await anext(events)
        assert engine.gauges().kv_used_ratio == pytest.approx(0.1, abs=0.01)
        await events.aclose()
        assert engine.gauges().kv_used_ratio == 0
        task = asyncio.create_task(answer(engine, ask(max_tokens=500)))
        await asyncio.sleep(STEP_S)
        task.cancel()
        await asyncio.wait({task})
        assert engine.gauges().kv_used_ratio == 0
        assert on_time(await timed(engine, 1, 10), 10 * STEP_S)


async def test_loading_takes_its_time_and_tells_how_far_it_is() -> None:
    async with serve(load=0.1) as engine:
        seen: list[float] = []
        started = time.monotonic()
        assert await engine.load(ModelSettings(name="late", context_tokens=77), seen.append) == 77
        assert on_time(time.monotonic() - started, 0.1)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)


def test_an_engine_whose_library_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.delitem(sys.modules, "services.worker.engines.llamacpp", raising=False)
    with pytest.raises(ConfigError, match=r"llamacpp needs xllamacpp, .*make setup"):
        engines.create(WorkerSettings())
