"""Students of some of the teacher's layers: which, and that they are copied bit for bit."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from services.distiller.objective.batch import Batch
from services.distiller.refused import Refused
from services.distiller.students.depth import cut, evenly_spaced, most_influential
from services.distiller.students.influence import block_influence
from tests.distiller.objective.tiny import FAMILIES, model, packed


@torch.no_grad()
def test_the_influence_of_a_layer_is_how_far_it_turns_a_real_token() -> None:
    teacher, batches = model(layers=3), [packed(2, 17), packed(1, 9, seed=1)]
    teacher.model.norm = torch.nn.Identity()  # else the last of transformers' states has gone through it
    expected, tokens = [0.0] * 3, 0
    for batch in batches:
        states = teacher(
            input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, output_hidden_states=True
        ).hidden_states
        for row, at in batch.real().nonzero().tolist():
            tokens += 1
            for layer in range(3):
                one, other = states[layer][row, at], states[layer + 1][row, at]
                expected[layer] += float(1 - one @ other / one.norm() / other.norm())
    assert block_influence(teacher, batches) == pytest.approx([value / tokens for value in expected], rel=1e-5)


def test_a_layer_that_changes_nothing_has_no_influence() -> None:
    teacher = model(layers=3)
    with torch.no_grad():
        teacher.model.layers[1].self_attn.o_proj.weight.zero_()
        teacher.model.layers[1].mlp.down_proj.weight.zero_()
    influence = block_influence(teacher, [packed()])
    assert influence[1] == pytest.approx(0, abs=1e-6)
    assert min(influence[0], influence[2]) > 0.01


def test_without_a_real_token_nothing_is_measured() -> None:
    with pytest.raises(Refused) as refused:
        block_influence(model(), [])
    assert refused.value.reason == "DATA_EMPTY"


@given(st.lists(st.integers(0, 99), min_size=2, max_size=7, unique=True), st.data())
def test_the_most_influential_are_the_ends_and_the_best_of_the_rest(influence: list[int], data: Any) -> None:
    count = data.draw(st.integers(2, len(influence)))
    last = len(influence) - 1
    choices = [set(one) for one in combinations(range(len(influence)), count) if {0, last} <= set(one)]
    best = max(choices, key=lambda one: sum(influence[index] for index in one))
    assert most_influential([float(one) for one in influence], count) == sorted(best)


def test_a_single_layer_is_the_last() -> None:
    assert most_influential([0.9, 0.5, 0.1], 1) == [2]
    assert evenly_spaced(5, 1) == [4]


@given(st.integers(1, 60), st.data())
def test_evenly_spaced_layers_are_at_distances_that_differ_by_one_at_most(layers: int, data: Any) -> None:
    count = data.draw(st.integers(1, layers))
    kept = evenly_spaced(layers, count)
    assert len(kept) == count
    assert kept[-1] == layers - 1
    if count > 1:
        assert kept[0] == 0
        gaps = [b - a for a, b in pairwise(kept)]
        assert min(gaps) >= 1
        assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_what_is_kept_is_the_teachers_bit_for_bit(family: str, tied: bool, tmp_path: Path) -> None:
    teacher = model(family, layers=4, dtype=torch.float32, tie_word_embeddings=tied)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    kept = [0, 2, 3]
    student = cut(teacher, kept)
    for name, value in student.state_dict().items():
        parts = name.split(".")
        if parts[1] == "layers":
            parts[2] = str(kept[int(parts[2])])
        torch.testing.assert_close(value, before[".".join(parts)], atol=0, rtol=0)
    assert (student.lm_head.weight is student.model.embed_tokens.weight) == tied
    assert student.config.num_hidden_layers == 3
    assert [layer.self_attn.layer_idx for layer in student.model.layers] == [0, 1, 2]
    assert len(teacher.model.layers) == teacher.config.num_hidden_layers == 4
    torch.testing.assert_close(teacher.state_dict(), before, atol=0, rtol=0)
    with torch.no_grad():
        student.model.layers[0].mlp.up_proj.weight.zero_()
    torch.testing.assert_close(teacher.state_dict(), before, atol=0, rtol=0)  # nothing is shared
    same_after_saving(student, tmp_path)


def same_after_saving(student: Any, directory: Path) -> None:
    """Another process would load the same model, and generate with it."""
    student.eval()
    student.save_pretrained(directory)
    loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    batch: Batch = packed(1, 12)
    torch.testing.assert_close(loaded(batch.input_ids).logits, student(batch.input_ids).logits)
    answers = [
        one.generate(batch.input_ids, max_new_tokens=4, do_sample=False, pad_token_id=0) for one in (student, loaded)
    ]
    assert answers[0].shape == (1, 16)
    assert answers[0].tolist() == answers[1].tolist()


def test_a_list_with_a_value_for_each_layer_is_cut_too() -> None:
    teacher = model("qwen2", layers=4, use_sliding_window=True, sliding_window=5, max_window_layers=2)
    assert teacher.config.layer_types == ["full_attention"] * 2 + ["sliding_attention"] * 2
    student = cut(teacher, [1, 3])
    assert student.config.layer_types == ["full_attention", "sliding_attention"]
    assert teacher.config.layer_types == ["full_attention"] * 2 + ["sliding_attention"] * 2


def test_all_layers_make_the_teacher() -> None:
    teacher = model(layers=3)
    ids = packed().input_ids
    torch.testing.assert_close(cut(teacher, [0, 1, 2])(ids).logits, teacher(ids).logits, atol=0, rtol=0)


@pytest.mark.parametrize("kept", [[], [0, 3], [-1, 0]])
def test_layers_that_are_not_there_are_refused(kept: list[int]) -> None:
    with pytest.raises(Refused) as refused:
        cut(model(layers=3), kept)
    assert refused.value.reason == "LAYERS_MISMATCH"
