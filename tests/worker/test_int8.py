"""The transformers engine serves a model in 8 bits as it serves any other: in batches, with a draft, and as a draft."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from torch import nn

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import EngineFailed, InvalidRequest
from services.common.int8.form import KINDS, write
from services.common.int8.notes import Kind, Notes
from services.worker.engine import Sampling
from services.worker.engines.batching import Batch, Sequence
from services.worker.engines.cache import Reader
from services.worker.engines.transformers import TransformersEngine
from tests.distiller import tiny
from tests.engines import answer, raw, tokens_of

QUESTIONS = ["hello", "What is it?", "a much longer prompt than the others " * 2, "1+1"]


def save(root: Path, kind: Kind) -> Any:
    """A tiny model in 8 bits with its tokenizer; the model as it is in this process."""
    model = tiny.teacher().eval().requires_grad_(False)
    names = [name for name, one in model.named_modules() if type(one) is nn.Linear]
    for name in names:
        model.set_submodule(name, KINDS[kind].of(model.get_submodule(name)))
    model.config.tie_word_embeddings = False
    root.mkdir()
    write(model, Notes(kind=kind, layers=tuple(names)), root)
    tiny.tokenizer().save_pretrained(root)
    return model


def greedy(model: Any, text: str, count: int) -> list[int]:
    """The likeliest tokens, the whole text read anew for each."""
    ids = tiny.tokenizer()(text)["input_ids"]
    made: list[int] = []
    while len(made) < count:
        with torch.no_grad():
            token = int(model(torch.tensor([[*ids, *made]])).logits[0, -1].argmax())
        if token == 256:
            break
        made.append(token)
    return made


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> AsyncIterator[TransformersEngine]:
    made = TransformersEngine(
        WorkerSettings(engine="transformers", model_root=tmp_path, slots=3, context_tokens=256, device="cpu")
    )
    yield made
    await made.close()


@pytest.mark.parametrize("kind", ["w8a8", "weight_only"])
async def test_answers_are_those_of_the_model_in_this_process(
    kind: Kind, engine: TransformersEngine, tmp_path: Path
) -> None:
    model = save(tmp_path / "small", kind)
    assert await engine.load(ModelSettings(name="chat", source="small"), lambda _: None) == 256
    together = await asyncio.gather(*(answer(engine, raw(text, max_tokens=12)) for text in QUESTIONS))
    for text, (pieces, _) in zip(QUESTIONS, together, strict=True):
        assert tokens_of(pieces) == greedy(model, text, 12)


@pytest.mark.parametrize("drafting", ["model", "draft", "both"])
async def test_it_drafts_and_is_drafted_for(drafting: str, engine: TransformersEngine, tmp_path: Path) -> None:
    int8 = save(tmp_path / "small", "w8a8")
    plain = tiny.save(tmp_path / "plain")
    sources = {"model": ("small", "plain"), "draft": ("plain", "small"), "both": ("small", "small")}[drafting]
    await engine.load(ModelSettings(name="chat", source=sources[0], draft=sources[1], draft_tokens=3), lambda _: None)
    model = int8 if sources[0] == "small" else tiny.teacher().eval()
    for text in QUESTIONS[:2]:
        assert tokens_of((await answer(engine, raw(text, max_tokens=16)))[0]) == greedy(model, text, 16)
    gauges = engine.gauges()
    assert plain.is_dir()
    assert gauges.drafted_tokens
    assert gauges.accepted_tokens > 0.5 * gauges.drafted_tokens


@pytest.mark.parametrize("field", ["source", "draft"])
async def test_one_whose_files_do_not_belong_together_is_refused_with_what_is_wrong(
    field: str, engine: TransformersEngine, tmp_path: Path
) -> None:
    tiny.save(tmp_path / "plain")
    file = tiny.save(tmp_path / "other") / "config.json"
    config = json.loads(file.read_text())
    settings = {"source": "plain", "draft": "plain", "draft_tokens": 2} | {field: "other"}
    for change, said in (
        ({"num_hidden_layers": 6}, "is missing, and 15 more"),
        ({"vocab_size": 300}, "264, 16"),
        ({"num_hidden_layers": "4"}, "expected int"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"max_position_embeddings": -4}, "of -4"),
    ):
        file.write_text(json.dumps({**config, **change}))
        with pytest.raises(InvalidRequest, match=f"the {field} is no model .*{said}") as caught:
            await engine.load(ModelSettings(name="chat", **settings), lambda _: None)
        assert caught.value.field == field


@pytest.mark.parametrize("draft", ["", "plain"])
async def test_a_request_that_breaks_the_model_fails_and_no_other_does(
    draft: str, engine: TransformersEngine, tmp_path: Path
) -> None:
    tiny.save(tmp_path / "plain")
    settings = ModelSettings(name="chat", source="plain", draft=draft, draft_tokens=2)
    await engine.load(settings, lambda _: None)
    network = engine._models["chat"].batch._reader._model
    network.lm_head.weight = nn.Parameter(network.lm_head.weight.detach().clone())
    network.model.embed_tokens.weight[tiny.tokenizer()("~")["input_ids"]] = float("nan")  # one token's is broken
    model = tiny.teacher().eval()
    for _ in range(2):  # the second time in a cache that the first has used
        asked = ["What is ~?", "hello", "a much longer one ~ " * 4, "1+1", "~", "What is it?"]
        got = await asyncio.gather(*(answer(engine, raw(one, max_tokens=9)) for one in asked), return_exceptions=True)
        for text, found in zip(asked, got, strict=True):
            if "~" in text:
                assert isinstance(found, EngineFailed)
                assert "no finite logits" in found.message
            else:
                assert not isinstance(found, BaseException)
                assert tokens_of(found[0]) == greedy(model, text, 9)


def test_what_a_broken_row_leaves_in_the_cache_breaks_no_later_one_of_its_place() -> None:
    model = tiny.teacher().eval().requires_grad_(False)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    words = tiny.tokenizer()
    model.model.embed_tokens.weight[words("~")["input_ids"]] = float("nan")
    batch = Batch(Reader(model, 4, 2, 256), 2, 256)

    def asked(text: str) -> Sequence:
        ids = words(text)["input_ids"]
        batch.add(made := Sequence([*ids], len(ids), Sampling(temperature=0), 256))
        return made

    asked("a long one that is still there at the end")
    batch.step()
    broken = asked("a text with ~~")
    assert [step.token is None for step in batch.step()] == [False, True]
    batch.remove(broken)
    asked("1+1")  # shorter than both
    assert batch.step()[1].token == greedy(tiny.teacher().eval(), "1+1", 1)[0]


@pytest.mark.parametrize("field", ["source", "draft"])
async def test_a_damaged_or_foreign_one_is_refused_with_what_is_wrong(
    field: str, engine: TransformersEngine, tmp_path: Path
) -> None:
    save(tmp_path / "small", "w8a8")
    tiny.save(tmp_path / "plain")
    settings = {"source": "plain", "draft": "plain", "draft_tokens": 2} | {field: "small"}
    file = tmp_path / "small" / "int8.json"
    notes = json.loads(file.read_text())
    for change, said in (({"format": 7}, "reads format 1"), ({"kind": "int4"}, "kind"), ({"layers": []}, "has not")):
        file.write_text(json.dumps({**notes, **change}))
        with pytest.raises(InvalidRequest, match=f"the {field} is damaged: .*{said}") as caught:
            await engine.load(ModelSettings(name="chat", **settings), lambda _: None)
        assert caught.value.field == field
