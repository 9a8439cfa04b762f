"""The count of a model's cost, against what torch counts as it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from services.distiller.refused import Refused
from services.distiller.students.cost import cost
from services.distiller.students.depth import cut
from services.distiller.students.width import narrow
from tests.distiller.objective.tiny import FAMILIES, model, packed


def counted(one: Any, time: int) -> int:
    """Multiply-adds of a token when so many go through at once; each of them is multiplied with every key."""
    one.set_attn_implementation("eager")  # torch does not count its fused attention on a CPU
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        one(packed(1, time).input_ids, use_cache=False)
    return int(counter.get_total_flops() / 2 / time)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_multiply_adds_are_those_that_torch_counts(family: str, tied: bool) -> None:
    one = model(family, layers=3, tie_word_embeddings=tied, **({"sliding_window": None} if family == "mistral" else {}))
    found = cost(one, context=16)
    assert found.total == counted(one, 16)
    assert found.head == 16 * 61
    assert found.parameters == sum(value.numel() for value in {id(v): v for v in one.parameters()}.values())


def test_students_cost_what_torch_counts() -> None:
    teacher = model(layers=4)
    for student in (cut(teacher, [0, 3]), narrow(teacher, 0.5, 0.5, [packed()]).model):
        assert cost(student, 16).total == counted(student, 16)


def test_fused_projections_cost_what_torch_counts() -> None:
    options = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 61,
    }
    phi = Phi3ForCausalLM(Phi3Config(**options, num_key_value_heads=2, pad_token_id=0))
    pythia = GPTNeoXForCausalLM(GPTNeoXConfig(**options))
    for one in (phi, pythia):
        assert cost(one.double().eval(), 16).total == counted(one, 16)


def test_of_experts_those_count_that_a_token_goes_through() -> None:
    config = MixtralConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=61,
    )
    one = MixtralForCausalLM(config)
    linear = 2 * (2 * 16 * 16 + 2 * 16 * 8)  # projections; the choice between eight experts is next to nothing
    assert cost(one, 16).rest == linear + 2 * 2 * (3 * 16 * 24), "two experts of three matrices in each of two layers"
    one.config = LlamaConfig(hidden_size=16, num_attention_heads=4)  # which does not speak of experts
    with pytest.raises(Refused, match="num_experts_per_tok"):
        cost(one, 16)


def test_a_window_bounds_the_keys_that_a_token_sees() -> None:
    one = model("mistral")
    assert cost(one, 3).attention == 2 * 2 * 16 * 3
    assert cost(one, 100).attention == 2 * 2 * 16 * 5


def test_what_is_saved_is_told_with_and_without_the_head() -> None:
    teacher = model(layers=4)
    one, other = cost(cut(teacher, [0, 3]), 16), cost(teacher, 16)
    saved = one.saved(other)
    assert saved["rest"] == pytest.approx(0.5)
    assert saved["total"] == pytest.approx(1 - one.total / other.total)
    assert saved["total"] < 0.5
    assert saved["parameters"] == pytest.approx(1 - one.parameters / other.parameters)


def test_memory_is_the_weights_of_one_type() -> None:
    found = cost(model(tie_word_embeddings=True), 1)
    assert [found.memory_bytes(name) // found.parameters for name in ("float32", "bfloat16", "int8")] == [4, 2, 1]
