"""A model is what its files say: where something is missing, left over or senseless, it is refused with what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, ViTConfig, ViTForImageClassification, ViTModel

from services.common.weights import Unreadable, config, network, out_of_memory, readable
from tests.distiller import tiny

NORM = "model.norm.weight"


def spoil(directory: Path, tensors: Callable[[dict[str, Any]], Any] = len, **values: Any) -> None:
    """Change what a saved model has in its file of weights and in its config.json."""
    found = load_file(directory / "model.safetensors")
    tensors(found)
    save_file(found, directory / "model.safetensors", metadata={"format": "pt"})
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def read(directory: Path) -> Any:
    config(AutoConfig, str(directory))
    return network(AutoModelForCausalLM, str(directory), use_safetensors=True)


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda at: spoil(at, lambda one: one.pop(NORM)), f"config.json: {NORM} is missing; take both"),
    "renamed": (
        lambda at: spoil(at, lambda one: one.update(other=one.pop(NORM))),
        f"{NORM} is missing, other belongs to no layer;",
    ),
    "more layers": (lambda at: spoil(at, num_hidden_layers=6), "layers.4.* is missing, and 15 more;"),
    "fewer layers": (lambda at: spoil(at, num_hidden_layers=3), "layers.3.* belongs to no layer, and 6 more;"),
    "no layers": (lambda at: spoil(at, num_hidden_layers=0), "and 33 more;"),
    "no head": (lambda at: spoil(at, tie_word_embeddings=False), "lm_head.weight is missing;"),
    "shape": (lambda at: spoil(at, lambda one: one.update({NORM: torch.ones(3)})), rf"{NORM} is \[3\], not \[16\];"),
    "vocabulary": (lambda at: spoil(at, vocab_size=300), r"is \[264, 16\], not \[300, 16\]"),
    "width": (lambda at: spoil(at, hidden_size=32), "and 35 more;"),
    "word": (lambda at: spoil(at, num_hidden_layers="4"), "num_hidden_layers.* expected int"),
    "no heads": (lambda at: spoil(at, num_attention_heads=0), "ZeroDivisionError"),
    "context": (lambda at: spoil(at, max_position_embeddings=-4), "max_position_embeddings of -4"),
    "function": (lambda at: spoil(at, hidden_act="nonsense"), "KeyError: 'nonsense'"),
    "torn": (lambda at: (at / "model.safetensors").write_bytes(b"x" * 40), "SafetensorError"),
    "no weights": (lambda at: (at / "model.safetensors").unlink(), "OSError"),
    "no config": (lambda at: (at / "config.json").unlink(), "in the directory"),
    "no JSON": (lambda at: (at / "config.json").write_text("{"), r"config\.json"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_model_that_does_not_fit_its_files_is_refused_with_what_is_wrong(how: str, tmp_path: Path) -> None:
    tiny.save(tmp_path)
    spoiling, said = SPOILT[how]
    spoiling(tmp_path)
    with pytest.raises(Unreadable, match=said) as refused:
        read(tmp_path)
    assert len(str(refused.value)) < 500
    assert str(tmp_path) not in str(refused.value)


def test_what_was_saved_is_read_also_with_what_old_versions_saved(tmp_path: Path) -> None:
    tiny.save(tmp_path)
    old = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2),
        "model.layers.0.self_attn.masked_bias": torch.ones(1),
    }
    spoil(tmp_path, lambda one: one.update(old))
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(read(tmp_path)(ids).logits, tiny.teacher().eval()(ids).logits)


def test_an_encoder_may_lack_its_pooler_and_leave_its_classes_but_no_layer(tmp_path: Path) -> None:
    small = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    ViTForImageClassification(small).save_pretrained(tmp_path)
    assert isinstance(network(AutoModel, str(tmp_path), of_images=True), ViTModel)
    spoil(tmp_path, lambda one: one.pop("vit.layernorm.weight"))
    with pytest.raises(Unreadable, match=r"layernorm\.weight is missing"):
        network(AutoModel, str(tmp_path), of_images=True)


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), OSError(12, "no memory")]
)
def test_want_of_memory_is_no_broken_file(error: Exception) -> None:
    assert out_of_memory(error)
    with pytest.raises(type(error)), readable("somewhere"):
        raise error
