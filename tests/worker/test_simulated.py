"""The simulated engine: what it says, and when."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladr.config import ConfigError, ModelSettings, WorkerSettings
from ladr.errors import CannotResume, EngineFailed, InvalidRequest, NotFound, PromptTooLong
from services.worker import engines
from services.worker.engine import Continuation, End, EngineRequest, Message, Piece, Sampling
from services.worker.engines.simulated import SimulatedEngine
from tests.engines import after, answer, text_of

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


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 99),
    st.sampled_from([1, 2, 9, 24, 500]),
    st.lists(st.sampled_from(["🦜", "🏰 ", " rain the", "n", " of talk", "never said"]), max_size=2),
    st.integers(0, 99),
    st.booleans(),
    st.booleans(),
)
def test_an_answer_cut_at_any_token_goes_on_as_if_undisturbed(
    seed: int, limit: int, stops: list[str], place: int, ids: bool, logprobs: bool
) -> None:
    asked = ask(seed=seed, max_tokens=limit, stop=tuple(stops), logprobs=2 if logprobs else None)

    async def cut_and_go_on() -> None:
        fleet = {"answer_tokens": 24, "answer_sigma": 0.3, "step": 0.0001}
        async with serve(**fleet) as one, serve(**fleet) as other:
            whole, end = await answer(one, asked)
            cut_at = place % (len(whole) + 1)
            rest, same_end = await answer(other, after(asked, whole[:cut_at], ids))
        assert (rest, same_end) == (whole[cut_at:], end)

    asyncio.run(cut_and_go_on())


async def test_text_that_the_client_lacks_though_it_has_the_tokens_comes_first() -> None:
    async with serve() as engine:
        whole, end = await answer(engine, ask())
        ids = tuple(piece.token_ids[0] for piece in whole)
        for count in (3, len(whole)):
            text = text_of(whole[:count])
            told = Continuation(ids[:count], count, text[:-2])
            asked = EngineRequest("test", "chat", Sampling(), prompt=PROMPT, continuation=told)
            rest, same_end = await answer(engine, asked)
            assert rest[0] == Piece(text[-2:], (), 0)
            assert (rest[1:], same_end) == (whole[count:], end)


async def test_the_prompt_and_the_answer_so_far_are_read_before_it_goes_on() -> None:
    async with serve(answer_tokens=200, step=0.0001) as engine:
        whole, _ = await answer(engine, ask())
    async with serve(answer_tokens=200, prefill_tokens_per_s=1000) as engine:
        started = time.monotonic()
        async with aclosing(engine.generate(after(ask(), whole[:100]))) as events:
            await anext(events)
        assert on_time(time.monotonic() - started, 0.1 + STEP_S)


async def test_a_continuation_that_is_not_of_this_answer_is_refused() -> None:
    async with serve() as engine:
        for told, error, field in (
            (Continuation((1, 2), 2, "x"), CannotResume, ""),
            (Continuation((), 65, "x"), CannotResume, ""),  # longer than the answer
            (Continuation((50_000, 2), 2, "x"), InvalidRequest, "continuation.token_ids"),
            (Continuation((), 2100, "x"), InvalidRequest, "continuation.token_count"),
        ):
            request = EngineRequest("test", "chat", Sampling(max_tokens=4000), prompt=PROMPT, continuation=told)
            with pytest.raises(error) as refused:
                await answer(engine, request)
            assert refused.value.field == field


async def test_what_was_read_before_is_not_read_again() -> None:
    async with serve(prefill_tokens_per_s=10_000, prefix_cache_tokens=4096) as engine:
        long = "x" * 6000
        for prompt, cached in ((long, 0), (long, 1472), (long[:512] + "y" * 5000, 128), ("x" * 512, 127)):
            started = time.monotonic()
            _, end = await answer(engine, ask(prompt, max_tokens=1))
            assert on_time(time.monotonic() - started, (end.prompt_tokens - cached) / 10_000 + STEP_S)
            assert end.cached_prompt_tokens == cached


async def test_a_later_turn_of_a_chat_finds_the_earlier_ones() -> None:
    turns = (Message("system", "x" * 1020), Message("user", "y" * 1020))
    async with serve(prefix_cache_tokens=4096) as engine:
        for asked, cached in ((turns[:1], 0), (turns, 256)):
            _, end = await answer(engine, EngineRequest("test", "chat", Sampling(max_tokens=1), messages=asked))
            assert end.cached_prompt_tokens == min(cached, end.prompt_tokens - 1)


async def test_a_request_that_does_not_fit_waits_until_others_free_their_room() -> None:
    async with serve(kv_tokens=100, step=0.001) as engine:
        order: list[str] = []

        async def run(name: str, prompt_tokens: int, tokens: int) -> None:
            await answer(engine, ask("x" * 4 * prompt_tokens, max_tokens=tokens))
            order.append(name)

        async with asyncio.TaskGroup() as group:
            for name, prompt_tokens, tokens in (("a", 30, 30), ("b", 50, 20), ("c", 10, 1)):
                group.create_task(run(name, prompt_tokens, tokens))
                await asyncio.sleep(0)
            assert engine.gauges().kv_used_ratio == 0.6
        assert order[0] == "a"  # c would have fitted, and waited its turn
        assert engine.gauges().kv_used_ratio == 0
        with pytest.raises(PromptTooLong):
            await answer(engine, ask("x" * 400))


async def test_one_that_waited_for_room_and_left_is_forgotten() -> None:
    async with serve(kv_tokens=100) as engine:
        first = engine.generate(ask("x" * 200, max_tokens=40))
        await anext(first)
        waiting = asyncio.create_task(answer(engine, ask("x" * 200, max_tokens=40)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        await first.aclose()
        assert engine.gauges().kv_used_ratio == 0
        await answer(engine, ask("x" * 200, max_tokens=2))


async def test_from_a_given_time_on_a_step_takes_longer() -> None:
    for after_s, quick_steps in ((60, 40), (20 * STEP_S, 20), (0, 0)):
        async with serve(slow_after=after_s, slow_factor=4) as engine:
            slow_steps = 40 - quick_steps
            assert on_time(await timed(engine, 1, 40), (quick_steps + 4 * slow_steps) * STEP_S)
