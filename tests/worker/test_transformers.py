"""The transformers engine on the bundled model: dequantised from GGUF once, then saved and loaded again as safetensors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import CannotResume, EngineFailed, InvalidRequest, NotFound, PromptTooLong
from services.common.sources import locate
from services.worker.engine import Continuation, EngineRequest, Message, Piece, Sampling
from services.worker.engines.transformers import TransformersEngine
from tests.engines import after, answer, text_of, tokens_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
GREEDY = Sampling(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model root with the bundled model as safetensors under "smol"."""
    root = tmp_path_factory.mktemp("models")
    where, gguf = locate("", root)
    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=gguf, dtype=torch.float32)
    del model.config.quantization_config  # else save_pretrained refuses
    plain = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(root / "smol")
    AutoTokenizer.from_pretrained(where, gguf_file=gguf).save_pretrained(root / "smol")
    return root


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(saved: Path) -> AsyncIterator[TransformersEngine]:
    made = TransformersEngine(
        WorkerSettings(engine="transformers", model_root=saved, slots=4, context_tokens=512, device="cpu")
    )
    seen: list[float] = []
    context = await made.load(ModelSettings(name="m", source="smol"), seen.append)
    assert context == 512
    assert seen == sorted(seen)
    yield made
    await made.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("transformers-")]


@pytest.fixture(scope="module")
def reference(saved: Path) -> Iterator[Any]:
    """Greedy answers by transformers' own generate()."""
    model = AutoModelForCausalLM.from_pretrained(saved / "smol", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(saved / "smol")

    def answer(question: str, tokens: int) -> list[int]:
        turns = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = model.generate(**ids, do_sample=False, max_new_tokens=tokens, pad_token_id=0)
        made = out[0, ids["input_ids"].shape[1] :].tolist()
        return [token for token in made if token != tokenizer.eos_token_id]

    yield answer


def request(question: str, sampling: Sampling = GREEDY, **fields: Any) -> EngineRequest:
    return EngineRequest(id="r", model="m", sampling=sampling, messages=(Message("user", question),), **fields)


QUESTIONS = ["What is the capital of France?", "Name three rivers.", "Say hi.", "Tell me of a fox. " * 20]


async def test_greedy_answers_equal_generate_token_by_token_in_any_company(
    engine: TransformersEngine, reference: Any
) -> None:
    async def later(question: str, after_s: float) -> list[int]:
        await asyncio.sleep(after_s)
        return tokens_of((await answer(engine, request(question)))[0])

    together = await asyncio.gather(*(later(q, n * 0.1) for n, q in enumerate(QUESTIONS)))
    for question, made in zip(QUESTIONS, together, strict=True):
        assert made == (await asyncio.to_thread(reference, question, 24))


async def test_the_text_is_the_tokens_decoded(engine: TransformersEngine, saved: Path) -> None:
    pieces, end = await answer(engine, request("What is the capital of France?"))
    decoded = AutoTokenizer.from_pretrained(saved / "smol").decode(tokens_of(pieces), skip_special_tokens=True)
    assert text_of(pieces) == decoded
    assert "Paris" in decoded
    assert end.reason == "stop"
    assert end.completion_tokens == sum(piece.count for piece in pieces)


async def test_a_seed_gives_the_same_answer_in_other_company(engine: TransformersEngine) -> None:
    seeded = Sampling(temperature=1.0, top_p=0.9, top_k=50, seed=7, max_tokens=16)
    alone = tokens_of((await answer(engine, request("Tell me a story.", seeded)))[0])
    answers = await asyncio.gather(
        answer(engine, request("Tell me a story.", seeded)),
        answer(engine, request("Say hi.", Sampling(seed=1, max_tokens=8))),
        answer(
            engine, request("Tell me a story.", Sampling(temperature=1.0, top_p=0.9, top_k=50, seed=8, max_tokens=16))
        ),
    )
    assert tokens_of(answers[0][0]) == alone
    assert tokens_of(answers[2][0]) != alone


PARROTS = "🦜🐉🏰🦜🐉🏰🦜🐉🏰🦜🐉🏰🦜🐉🏰🦜🐉"


@pytest.mark.parametrize(
    "asked",
    [
        request("What is the capital of France?"),
        request("Tell me a story.", Sampling(temperature=1.0, top_p=0.9, top_k=50, seed=7, max_tokens=16, logprobs=2)),
        request("What is the capital of France?", Sampling(temperature=0, max_tokens=24, stop=("is Paris. I",))),
        EngineRequest("r", "m", GREEDY, prompt=PARROTS),
    ],
    ids=["greedy", "seeded", "stop string", "emojis"],
)
async def test_an_answer_cut_anywhere_goes_on_as_if_undisturbed(
    engine: TransformersEngine, asked: EngineRequest
) -> None:
    whole, end = await answer(engine, asked)
    cuts = [*range(1, len(whole), 3), len(whole)]
    for begin in range(0, len(cuts), 4):  # four at once, so that each has company
        resumed = await asyncio.gather(*(answer(engine, after(asked, whole[:cut])) for cut in cuts[begin : begin + 4]))
        for cut, (rest, same_end) in zip(cuts[begin:], resumed, strict=False):
            assert tokens_of(rest) == tokens_of(whole[cut:])
            assert text_of(rest) == text_of(whole[cut:])
            assert same_end == end


async def test_an_answer_that_was_complete_already_is_just_finished(engine: TransformersEngine, saved: Path) -> None:
    ends = AutoTokenizer.from_pretrained(saved / "smol").eos_token_id
    sampling = Sampling(temperature=0, max_tokens=2, stop=("XY",))
    for ids, text, lacking, reason in (((504, 3575), "The", " capital", "length"), ((504, ends), "The", "", "stop")):
        told = Continuation(ids, 2, text)
        pieces, end = await answer(engine, request("What is the capital of France?", sampling, continuation=told))
        assert pieces == ([Piece(lacking, (), 0)] if lacking else [])
        assert (end.reason, end.completion_tokens) == (reason, 2)
    began_s = time.monotonic()
    while engine.gauges().kv_used_ratio:
        assert time.monotonic() - began_s < 5
        await asyncio.sleep(0.005)


async def test_a_continuation_that_makes_no_sense_is_refused(engine: TransformersEngine) -> None:
    for told, error, field in (
        (Continuation((), 2, "x"), CannotResume, ""),
        (Continuation((49_152, 1), 2, "x"), InvalidRequest, "continuation.token_ids"),
        (Continuation((5,) * 500, 500, "x"), InvalidRequest, "continuation.token_count"),
    ):
        with pytest.raises(error) as refused:
            await answer(engine, request("Say hi.", Sampling(max_tokens=600), continuation=told))
        assert refused.value.field == field


async def test_max_tokens_and_stop_strings_end_the_answer(engine: TransformersEngine) -> None:
    pieces, end = await answer(engine, request("Name three rivers.", Sampling(temperature=0, max_tokens=1)))
    assert (end.reason, end.completion_tokens, len(tokens_of(pieces))) == ("length", 1, 1)
    pieces, end = await answer(
        engine, request("What is the capital of France?", Sampling(temperature=0, max_tokens=24, stop=("Par",)))
    )
    assert (end.reason, end.stop_sequence) == ("stop_sequence", "Par")
    assert text_of(pieces) == "The capital of France is "


async def test_an_emoji_of_several_tokens_comes_out_whole(engine: TransformersEngine) -> None:
    asked = EngineRequest(id="r", model="m", sampling=GREEDY, prompt=PARROTS)
    pieces, _ = await answer(engine, asked)
    assert "🐉" in text_of(pieces)
    assert "\ufffd" not in text_of(pieces[:-1])
    assert any(piece.text == "" for piece in pieces)


async def test_logprobs_tell_the_chosen_token_and_its_rivals(engine: TransformersEngine) -> None:
    sampling = Sampling(temperature=0, max_tokens=4, logprobs=3)
    pieces, _ = await answer(engine, request("What is the capital of France?", sampling))
    for piece in pieces:
        (one,) = piece.logprobs
        assert one.token_id == piece.token_ids[0]
        assert one.logprob <= 0
        assert [r.logprob for r in one.top] == sorted((r.logprob for r in one.top), reverse=True)
        assert one.top[0].token_id == one.token_id  # greedy
        assert one.token == one.top[0].token


async def test_closing_the_stream_frees_the_place_within_250_ms(engine: TransformersEngine) -> None:
    long = Sampling(temperature=1, max_tokens=400, seed=1)
    for prompt in ("Tell me a long story.", "Tell me of a fox. " * 80):  # while it writes, and while it reads
        before = engine.gauges().kv_used_ratio
        stream = engine.generate(request(prompt, long))
        async with aclosing(stream):
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        began_s = time.monotonic()
        while (engine.gauges().kv_used_ratio or 0) > (before or 0):
            assert time.monotonic() - began_s < 0.25
            await asyncio.sleep(0.005)


async def test_cancelling_with_every_place_taken_harms_nobody(engine: TransformersEngine) -> None:
    long = Sampling(temperature=1, max_tokens=60, seed=1)
    running = [asyncio.create_task(answer(engine, request(f"Tell me of {n}.", long))) for n in range(4)]
    await asyncio.sleep(0.3)
    running[0].cancel()
    following = asyncio.create_task(answer(engine, request("Say hi.", Sampling(temperature=0, max_tokens=4))))
    running[2].cancel()
    _, end = await asyncio.wait_for(following, 20)
    assert end.completion_tokens >= 1
    for task in (running[1], running[3]):
        _, end = await asyncio.wait_for(task, 30)
        assert end.reason in ("length", "stop")


async def test_an_engine_whose_thread_has_died_fails_requests_and_hangs_none(saved: Path) -> None:
    engine = TransformersEngine(WorkerSettings(engine="transformers", model_root=saved, slots=2, device="cpu"))
    await engine.load(ModelSettings(name="m", source="smol"), lambda _: None)
    model = engine._models["m"]
    running = asyncio.create_task(answer(engine, request("Tell me a story.", Sampling(max_tokens=500))))
    await asyncio.sleep(0.3)

    def breaks(*_: object) -> None:
        raise ZeroDivisionError

    model._take = breaks  # type: ignore[method-assign]
    for task in (running, asyncio.create_task(answer(engine, request("hi")))):
        with pytest.raises(EngineFailed):
            await asyncio.wait_for(task, 10)
    with pytest.raises(EngineFailed):
        await asyncio.wait_for(answer(engine, request("hi")), 10)
    await engine.close()


async def test_a_prompt_over_the_context_is_refused(engine: TransformersEngine) -> None:
    with pytest.raises(PromptTooLong):
        await answer(engine, request("word " * 600))


async def test_messages_that_the_template_does_not_take_are_the_clients_fault(saved: Path) -> None:
    engine = TransformersEngine(WorkerSettings(engine="transformers", model_root=saved, slots=1, device="cpu"))
    await engine.load(ModelSettings(name="m", source="smol"), lambda _: None)
    engine._models["m"]._tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(InvalidRequest) as refused:
        await answer(engine, request("hi"))
    assert refused.value.field == "messages"
    await engine.close()


async def test_sources_outside_the_model_root_or_of_another_kind_are_refused(saved: Path) -> None:
    engine = TransformersEngine(WorkerSettings(engine="transformers", model_root=saved, slots=1, device="cpu"))
    (saved / "pickled").mkdir(exist_ok=True)
    (saved / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    (saved / "pickled" / "config.json").write_text((saved / "smol" / "config.json").read_text())
    (saved / "leak").unlink(missing_ok=True)
    (saved / "leak").symlink_to("/etc")
    for source, error in (
        ("../etc", InvalidRequest),
        ("/etc", InvalidRequest),
        ("leak", InvalidRequest),
        ("pickled", InvalidRequest),
        ("nothing-here", NotFound),
    ):
        with pytest.raises(error):
            await engine.load(ModelSettings(name="x", source=source), lambda _: None)
    await engine.close()


@pytest.fixture(scope="module")
def draft(saved: Path) -> str:
    """The source of a draft: the model without its layers 11 to 15."""
    model = AutoModelForCausalLM.from_pretrained(saved / "smol", dtype=torch.float32)
    kept = [layer for number, layer in enumerate(model.model.layers) if not 11 <= number <= 15]
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(kept)
    model.config.layer_types = None
    model.save_pretrained(saved / "draft")
    AutoTokenizer.from_pretrained(saved / "smol").save_pretrained(saved / "draft")
    return "draft"


async def test_answers_with_a_draft_are_the_models_own_and_its_acceptance_is_told(
    engine: TransformersEngine, reference: Any, draft: str
) -> None:
    seeded = request("Tell me a story.", Sampling(temperature=1.0, top_p=0.9, seed=7, max_tokens=16, logprobs=1))
    alone = await answer(engine, seeded)
    assert engine.gauges().drafted_tokens is None
    await engine.load(ModelSettings(name="d", source="smol", draft=draft), lambda _: None)
    try:
        asked = [replace(request(question), model="d") for question in QUESTIONS[:3]]
        together = await asyncio.gather(*(answer(engine, one) for one in [*asked, replace(seeded, model="d")]))
        for question, (pieces, _) in zip(QUESTIONS, together[:3], strict=False):
            assert tokens_of(pieces) == (await asyncio.to_thread(reference, question, 24))
        pieces, end = together[3]
        assert (tokens_of(pieces), text_of(pieces), end) == (tokens_of(alone[0]), text_of(alone[0]), alone[1])
        before = engine.gauges()
        assert before.drafted_tokens
        assert 0 < before.accepted_tokens <= before.drafted_tokens
    finally:
        await engine.unload("d")
    after_it = engine.gauges()
    assert (after_it.drafted_tokens, after_it.accepted_tokens) == (before.drafted_tokens, before.accepted_tokens)


async def test_a_draft_of_another_vocabulary_is_refused(engine: TransformersEngine, saved: Path) -> None:
    other = LlamaConfig(vocab_size=64, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(other).save_pretrained(saved / "other")
    AutoTokenizer.from_pretrained(saved / "smol").save_pretrained(saved / "other")
    with pytest.raises(InvalidRequest, match="another vocabulary") as caught:
        await engine.load(ModelSettings(name="d", source="smol", draft="other"), lambda _: None)
    assert caught.value.field == "draft"
