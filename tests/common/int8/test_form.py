"""A model in 8 bits is read as it was written; a directory that is no such model is refused with what is wrong."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from services.common.int8.form import KINDS, read, size, write
from services.common.int8.notes import Damaged, Kind, Notes, read_notes
from tests.distiller import tiny

IDS = torch.tensor([[1, 5, 9, 60, 200, 3, 3, 80]])
LAYER = "model.layers.0.mlp.up_proj"


def made(kind: Kind, head: bool, rank: int = 0) -> tuple[Any, Notes]:
    """A tiny model with all of its linear layers in int8; with the head, or without."""
    model = tiny.teacher(layers=2).eval().requires_grad_(False)
    names = [name for name, one in model.named_modules() if type(one) is nn.Linear and (head or name != "lm_head")]
    for name in names:
        model.set_submodule(name, KINDS[kind].of(model.get_submodule(name)))
    if rank:
        one = model.get_submodule(LAYER)
        one.adapt(torch.randn(rank, one.in_features), torch.randn(one.out_features, rank))
    model.config.tie_word_embeddings = not head
    return model, Notes(kind=kind, layers=tuple(names), rank={LAYER: rank} if rank else {})


@pytest.mark.parametrize("kind", ["w8a8", "weight_only"])
@pytest.mark.parametrize(("head", "rank"), [(True, 0), (False, 3)])
def test_what_is_read_says_what_was_written(kind: Kind, head: bool, rank: int, tmp_path: Path) -> None:
    model, notes = made(kind, head, rank)
    write(model, notes, tmp_path)
    again = read(tmp_path)
    assert read_notes(tmp_path) == notes
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert not any(one.requires_grad for one in again.parameters())
    assert (again.lm_head.weight is again.model.embed_tokens.weight) is not head
    assert again.generation_config.eos_token_id == 256
    assert size(again) == size(model)


def test_a_model_of_many_files_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.common.int8.form.SHARD_BYTES", 2000)
    model, notes = made("w8a8", True)
    write(model, notes, tmp_path)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    assert torch.equal(read(tmp_path)(IDS).logits, model(IDS).logits)


def test_what_is_not_int8_has_the_type_that_was_asked_for_and_scales_keep_theirs(tmp_path: Path) -> None:
    model, notes = made("w8a8", False)
    write(model, notes, tmp_path, torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16):
        again = read(tmp_path, dtype)
        assert again.model.embed_tokens.weight.dtype == again(IDS).logits.dtype == dtype
        assert again.get_submodule(LAYER).scales.dtype == again.model.rotary_emb.inv_freq.dtype == torch.float32
        assert again.get_submodule(LAYER).weight.dtype == torch.int8
    assert torch.allclose(again(IDS).logits.float(), model(IDS).logits, atol=0.3)
    assert read(tmp_path).model.norm.weight.dtype == torch.bfloat16


def test_int8_takes_a_quarter_of_the_bytes_of_float32() -> None:
    model, _ = made("w8a8", False)
    plain = tiny.teacher(layers=2)
    linear = sum(one.weight.numel() for name, one in plain.named_modules() if type(one) is nn.Linear) - 264 * 16
    scales = sum(one.scales.numel() for one in model.modules() if hasattr(one, "scales"))
    assert size(plain) - size(model) == 3 * linear - 4 * scales


def change(directory: Path, **values: Any) -> None:
    file = directory / "int8.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def tensors(directory: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    found = load_file(directory / "model-00000.safetensors")
    edit(found)
    save_file(found, directory / "model-00000.safetensors")


def fill(directory: Path, name: str, value: float) -> None:
    """One number of a tensor is another."""
    tensors(directory, lambda one: one[name].view(-1)[3:4].fill_(value))


def configure(directory: Path, **values: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no notes": (lambda at: (at / "int8.json").unlink(), "int8.json cannot be read"),
    "no JSON": (lambda at: (at / "int8.json").write_text("{"), "not as it was written"),
    "another's": (lambda at: (at / "int8.json").write_text('{"quantization": "int8"}'), "not as it was written"),
    "another kind": (lambda at: change(at, kind="int4"), "kind"),
    "later format": (lambda at: change(at, format=2), "reads format 1"),
    "unknown layer": (lambda at: change(at, layers=["model.layers.9.q"]), "which this model has not"),
    "no linear layer": (lambda at: change(at, layers=["model.norm"]), "no linear layer"),
    "fewer layers": (lambda at: change(at, layers=[LAYER]), "this model has not"),
    "no weights": (lambda at: (at / "model-00000.safetensors").unlink(), "tensors are missing"),
    "torn weights": (lambda at: (at / "model-00000.safetensors").write_bytes(b"x" * 40), "cannot be read"),
    "a tensor less": (lambda at: tensors(at, lambda one: one.pop("model.norm.weight")), "missing, of them model.norm"),
    "another shape": (lambda at: tensors(at, lambda one: one.update({f"{LAYER}.scales": torch.ones(3)})), "scales is"),
    "floats": (lambda at: tensors(at, lambda one: one.update({f"{LAYER}.weight": torch.ones(32, 16)})), "weight is"),
    "no config": (lambda at: (at / "config.json").unlink(), "cannot be read"),
    "no heads": (lambda at: configure(at, num_attention_heads=0), "cannot be read: ZeroDivisionError"),
    "no number": (lambda at: fill(at, f"{LAYER}.scales", math.nan), "scales has scales that are not over 0"),
    "no end": (lambda at: fill(at, f"{LAYER}.scales", math.inf), "scales has numbers that are not finite"),
    "zero": (lambda at: fill(at, f"{LAYER}.scales", 0.0), "scales has scales that are not over 0"),
    "turned round": (lambda at: fill(at, f"{LAYER}.scales", -1.0), "scales has scales that are not over 0"),
    "a norm of none": (lambda at: fill(at, "model.norm.weight", math.nan), "weight has numbers that are not finite"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_directory_is_refused_with_what_is_wrong(damage: str, tmp_path: Path) -> None:
    write(*made("w8a8", True), tmp_path)
    spoil, said = DAMAGE[damage]
    spoil(tmp_path)
    with pytest.raises(Damaged, match=said):
        read(tmp_path)


def test_want_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(*made("w8a8", True), tmp_path)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("services.common.int8.form._fill", full)
    with pytest.raises(torch.OutOfMemoryError):
        read(tmp_path)


def test_writing_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model, notes = made("w8a8", False)
    before = copy.deepcopy(model.state_dict())
    write(model, notes, tmp_path, torch.bfloat16)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert model.config.dtype != torch.bfloat16
