"""Narrower students: what is kept is the most valuable, and the teacher's bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Olmo2Config, Olmo2ForCausalLM

from services.distiller.objective.distillation import Distillation
from services.distiller.refused import Refused
from services.distiller.spec import Objective
from services.distiller.students.width import narrow
from tests.distiller.objective.tiny import FAMILIES, model, packed
from tests.distiller.students.test_depth import same_after_saving


def dumb_worths(teacher: Any, batch: Any, name: str) -> list[list[float]]:
    """Of each input of that linear layer of each layer: mean |activation| of real tokens · norm of its column."""
    found = []
    for layer in teacher.model.layers:
        seen: list[Any] = []
        reader = layer.get_submodule(name)
        hook = reader.register_forward_pre_hook(lambda module, inputs, seen=seen: seen.append(inputs[0]))
        teacher(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
        hook.remove()
        tokens = [seen[0][row, at] for row, at in batch.real().nonzero().tolist()]
        found.append(
            [
                sum(abs(float(token[n])) for token in tokens) / len(tokens) * float(reader.weight[:, n].norm())
                for n in range(reader.in_features)
            ]
        )
    return found


def test_a_student_that_lost_useless_heads_alone_looks_where_its_teacher_looks() -> None:
    teacher = model(layers=1, num_attention_heads=8, num_key_value_heads=4)
    output = teacher.model.layers[-1].self_attn.o_proj.weight.data
    output.view(16, 4, -1)[:, [0, 2]] = 0  # what these two groups see goes nowhere
    found = narrow(teacher, 1.0, 0.5, [packed()])
    assert found.heads == (2, 3, 6, 7)
    only = Objective(task_weight=0, kl_weight=0, attention_weight=1)
    losses = [
        Distillation(found.model, teacher, only, heads=heads)(packed()).total.detach().item()
        for heads in (found.heads, None)
    ]
    assert losses[0] == pytest.approx(0, abs=1e-12) and losses[1] > 1e-3
    whole = narrow(teacher, 0.5, 1.0, [packed()])
    assert whole.heads == tuple(range(8))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_most_valuable_units_and_heads_are_kept_bit_for_bit(family: str, tmp_path: Path) -> None:
    teacher = model(family, dtype=torch.float32, tie_word_embeddings=True, num_attention_heads=8, num_key_value_heads=4)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    batch = packed(3, 21)
    with torch.no_grad():
        units, channels = (dumb_worths(teacher, batch, name) for name in ("mlp.down_proj", "self_attn.o_proj"))
    student = narrow(teacher, 0.67, 0.5, [batch]).model
    width = teacher.model.layers[0].self_attn.head_dim
    for index, layer in enumerate(student.model.layers):
        own = teacher.model.layers[index]
        kept = sorted(sorted(range(24), key=lambda n: -units[index][n])[:16])
        torch.testing.assert_close(layer.mlp.gate_proj.weight, own.mlp.gate_proj.weight[kept], atol=0, rtol=0)
        torch.testing.assert_close(layer.mlp.up_proj.weight, own.mlp.up_proj.weight[kept], atol=0, rtol=0)
        torch.testing.assert_close(layer.mlp.down_proj.weight, own.mlp.down_proj.weight[:, kept], atol=0, rtol=0)
        size = 2 * width  # two query heads in a group
        worth = [sum(channels[index][n * size : (n + 1) * size]) for n in range(4)]
        groups = sorted(sorted(range(4), key=lambda n: -worth[n])[:2])
        for name, each in (("q_proj", size), ("k_proj", width), ("v_proj", width)):
            rows = [n for group in groups for n in range(group * each, (group + 1) * each)]
            ours, theirs = (one.self_attn.get_submodule(name) for one in (layer, own))
            torch.testing.assert_close(ours.weight, theirs.weight[rows], atol=0, rtol=0)
            if theirs.bias is not None:
                torch.testing.assert_close(ours.bias, theirs.bias[rows], atol=0, rtol=0)
        columns = [n for group in groups for n in range(group * size, (group + 1) * size)]
        torch.testing.assert_close(
            layer.self_attn.o_proj.weight, own.self_attn.o_proj.weight[:, columns], atol=0, rtol=0
        )
    for name, value in student.state_dict().items():
        if "proj" not in name:
            torch.testing.assert_close(value, before[name], atol=0, rtol=0)
    config = student.config
    assert (config.intermediate_size, config.num_attention_heads, config.num_key_value_heads) == (16, 4, 2)
    assert config.head_dim == width
    assert student.lm_head.weight is student.model.embed_tokens.weight
    torch.testing.assert_close(teacher.state_dict(), before, atol=0, rtol=0)
    assert teacher.config.intermediate_size == 24
    same_after_saving(student, tmp_path)


def test_units_that_do_nothing_can_go_without_a_trace() -> None:
    teacher = model()
    with torch.no_grad():
        for layer in teacher.model.layers:
            layer.mlp.down_proj.weight[:, 3:11] = 0
            layer.self_attn.o_proj.weight[:, :8] = 0  # the first group of two heads of four
    student = narrow(teacher, 16 / 24, 0.5, [packed()]).model
    ids = packed(seed=5).input_ids
    torch.testing.assert_close(student(ids).logits, teacher(ids).logits)


def test_all_of_it_is_the_teacher() -> None:
    teacher, ids = model(), packed().input_ids
    torch.testing.assert_close(
        narrow(teacher, 1.0, 1.0, [packed()]).model(ids).logits, teacher(ids).logits, atol=0, rtol=0
    )


def test_a_share_of_nearly_nothing_keeps_a_few_units_and_a_group() -> None:
    student = narrow(model(), 1e-9, 1e-9, [packed()]).model
    assert (student.config.intermediate_size, student.config.num_key_value_heads) == (8, 1)
    assert narrow(model(intermediate_size=23), 0.5, 1.0, [packed()]).model.config.intermediate_size == 12


def test_the_number_of_heads_is_one_that_can_be_loaded_again(tmp_path: Path) -> None:
    teacher = model(num_attention_heads=8, num_key_value_heads=4, dtype=torch.float32)
    student = narrow(teacher, 1.0, 0.75, [packed()]).model  # three groups would be six heads, which do not divide 16
    assert student.config.num_attention_heads in (4, 8)
    same_after_saving(student, tmp_path)
    other = model("qwen2", num_attention_heads=8, num_key_value_heads=4, dtype=torch.float32)
    free = narrow(other, 1.0, 0.75, [packed()]).model
    assert free.config.num_attention_heads == 6
    same_after_saving(free, tmp_path)


def test_layers_of_another_build_and_no_data_are_refused() -> None:
    other = model()
    other.model.layers[1].mlp.gate_proj = torch.nn.Identity()
    with pytest.raises(Refused) as refused:
        narrow(other, 0.5, 1.0, [packed()])
    assert refused.value.reason == "MODEL_UNSUPPORTED"
    with pytest.raises(Refused) as refused:
        narrow(model(), 0.5, 1.0, [])
    assert refused.value.reason == "DATA_EMPTY"


def test_a_norm_over_all_heads_is_refused() -> None:
    other = model()
    for layer in other.model.layers:
        layer.self_attn.q_norm = torch.nn.RMSNorm(16)
    with pytest.raises(Refused, match="all heads together"):
        narrow(other, 0.5, 0.5, [packed()])
    config = Olmo2Config(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        eos_token_id=1,
    )
    olmo = Olmo2ForCausalLM(config)
    with pytest.raises(Refused, match=r"set student\.heads to 1"):
        narrow(olmo, 0.5, 0.5, [packed()])
    assert narrow(olmo, 0.5, 1.0, [packed()]).model.config.intermediate_size == 16
