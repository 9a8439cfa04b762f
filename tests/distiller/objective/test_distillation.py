"""The whole loss as the trainer calls it, against whole logits and eager attention."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from services.distiller.objective.batch import IGNORE, Batch
from services.distiller.objective.distillation import Distillation
from services.distiller.refused import Refused
from services.distiller.spec import Objective
from tests.distiller.objective.tiny import VOCABULARY, model, packed

ALL = Objective(hidden_weight=0.5)
MAP = ((0, 1), (1, 2))


def dumb(student: Any, teacher: Any, batch: Batch, objective: Objective, layer_map: Any) -> dict[str, Any]:
    """Each part, token by token, from whole logits, eager maps and hidden states of the models."""
    for one in (student, teacher):
        one.set_attn_implementation("eager")
    options = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}
    own, known = (one(**options, output_attentions=True, output_hidden_states=True) for one in (student, teacher))
    for one in (student, teacher):
        one.set_attn_implementation("sdpa")
    tau, sums = objective.temperature, dict.fromkeys(("task", "kl", "attention", "hidden"), 0.0)
    tokens = 0
    for row, at in (batch.targets() != IGNORE).nonzero().tolist():
        tokens += 1
        logits, taught = own.logits[row, at], known.logits[row, at]
        sums["task"] -= logits.softmax(-1)[batch.labels[row, at + 1]].log()
        p, q = (taught / tau).softmax(-1), (logits / tau).softmax(-1)
        sums["kl"] += tau**2 * (p * (p / q).log()).sum()
        maps = [one.attentions[-1][row, :, at] for one in (own, known)]
        sums["attention"] += ((maps[0] - maps[1]) ** 2).sum() / len(maps[0])
        for a, b in layer_map:
            gap = known.hidden_states[b + 1][row, at] - own.hidden_states[a + 1][row, at]
            sums["hidden"] += (gap**2).mean() / len(layer_map)
    weights = (objective.task_weight, objective.kl_weight, objective.attention_weight, objective.hidden_weight)
    return {name: weight * value / tokens for weight, (name, value) in zip(weights, sums.items(), strict=True)}


def gradients(one: Any) -> dict[str, Any]:
    return {name: p.grad.clone() for name, p in one.named_parameters() if p.requires_grad and p.grad is not None}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_loss_and_its_gradients_are_those_of_the_naive_form(family: str, tied: bool) -> None:
    student = model(family, tie_word_embeddings=tied)
    teacher = model(family, layers=4, seed=1)
    batch = packed(3, 19)
    objective = Objective(hidden_weight=0.5, attention_weight=3.0)
    layer_map = ((0, 1),)  # the last layers' states have gone through a norm where transformers gives them
    expected = dumb(student, teacher, batch, objective, layer_map)
    sum(expected.values()).backward()
    naive = gradients(student)
    student.zero_grad()
    losses = Distillation(student, teacher, objective, layer_map, chunk=5)(batch)
    losses.total.backward()
    assert losses.parts.keys() == expected.keys()
    for name, part in losses.parts.items():
        assert part.item() == pytest.approx(expected[name].item(), rel=1e-6), name
        assert not part.requires_grad
    assert losses.total.item() == pytest.approx(sum(part.item() for part in losses.parts.values()))
    found = gradients(student)
    assert found.keys() == naive.keys()
    for name, one in found.items():
        near = 1e-5  # transformers makes eager maps in float32
        torch.testing.assert_close(one, naive[name], atol=near * float(naive[name].abs().max()), rtol=near)


@pytest.mark.parametrize("name", ["reverse_kl", "jsd"])
def test_the_divergence_is_the_one_that_is_asked_for(name: Any) -> None:
    student, teacher, batch = model(), model(seed=1), packed()
    found = Distillation(student, teacher, Objective(divergence=name, jsd_beta=0.4))(batch).parts
    scored = batch.targets() != IGNORE
    options = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}
    q, p = ((one(**options).logits[scored] / 3).softmax(-1) for one in (student, teacher))
    m = 0.4 * p + 0.6 * q
    if name == "jsd":
        expected = 0.4 * (p * (p / m).log()).sum(-1) + 0.6 * (q * (q / m).log()).sum(-1)
    else:
        expected = (q * (q / p).log()).sum(-1)
    assert found[name].item() == pytest.approx(0.8 * 9 * expected.mean().item())
    assert found.keys() == {"task", name, "attention"}


def test_a_student_that_is_its_teacher_has_only_the_task_left() -> None:
    losses = Distillation(model(), model(), ALL)(packed())
    assert losses.parts["task"] > 1
    for name in ("kl", "attention", "hidden"):
        assert losses.parts[name].item() == pytest.approx(0, abs=1e-9)


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    student, teacher, batch = model(), model(layers=3, seed=1), packed(4, 21)
    distillation = Distillation(student, teacher, ALL, MAP)
    whole = distillation(batch)
    whole.total.backward()
    expected = gradients(student)
    student.zero_grad()
    empty = replace(batch, labels=torch.full_like(batch.labels, IGNORE))  # a share that has nothing to score
    total = 0.0
    for rows in (slice(0, 1), slice(1, 4)):
        fields = (batch.input_ids, batch.labels, batch.position_ids)
        losses = distillation(Batch(*(value[rows] for value in fields)), scored_total=batch.scored())
        losses.total.backward()
        total += losses.total.item()
    nothing = distillation(empty, scored_total=batch.scored())
    nothing.total.backward()
    assert (nothing.total.item(), nothing.tokens) == (0, 0)
    assert total == pytest.approx(whole.total.item())
    for name, one in gradients(student).items():
        torch.testing.assert_close(one, expected[name])


def test_a_batch_with_nothing_to_score_is_refused() -> None:
    batch = packed()
    batch = replace(batch, labels=torch.full_like(batch.labels, IGNORE))
    distillation = Distillation(model(), model(), Objective())
    for total in (None, 0):
        with pytest.raises(Refused, match="no token") as refused:
            distillation(batch, scored_total=total)
        assert refused.value.reason == "ALL_LABELS_MASKED"


@contextmanager
def calls(one: Any) -> Iterator[list[int]]:
    counted: list[int] = []
    hook = one.register_forward_pre_hook(lambda module, inputs: counted.append(1))
    yield counted
    hook.remove()


def test_the_teacher_runs_only_where_it_is_needed() -> None:
    student, teacher, batch = model(), model(seed=1), packed()
    with calls(teacher) as counted:
        Distillation(student, teacher, Objective(kl_weight=0.0, attention_weight=0.0))(batch)
        ids, values = Distillation(student, teacher, Objective()).teacher_top_k(batch, 4)
        assert len(counted) == 1
        taught = replace(batch, teacher_ids=ids, teacher_log_probabilities=values)
        Distillation(student, teacher, Objective(attention_weight=0.0))(taught)
        assert len(counted) == 1
        Distillation(student, teacher, Objective())(taught)  # for the attention map
        assert len(counted) == 2
    Distillation(student, None, Objective(attention_weight=0.0))(taught)
    with pytest.raises(Refused) as refused:
        Distillation(student, None, Objective(attention_weight=0.0))(batch)
    assert refused.value.reason == "TEACHER_MISSING"


def test_all_but_one_of_the_teachers_tokens_are_as_good_as_all() -> None:
    student, teacher, batch = model(), model(seed=1), packed()
    distillation = Distillation(student, teacher, Objective(), chunk=5)
    whole = distillation(batch).parts["kl"].item()
    found = []
    for k in (1, 8, VOCABULARY - 1):
        ids, values = distillation.teacher_top_k(batch, k)
        assert ids.shape == values.shape == (*batch.input_ids.shape, k)
        taught = replace(batch, teacher_ids=ids, teacher_log_probabilities=values)
        found.append(distillation(taught).parts["kl"].item())
    assert found == sorted(found)
    assert found[0] < 0.9 * whole
    assert found[-1] == pytest.approx(whole, rel=1e-4)


def padded(one: Any) -> Any:
    """The same model with more logits than it has tokens, and those loud."""
    wide = model(vocab_size=VOCABULARY + 7)
    values = one.state_dict()
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        values[name] = torch.cat([values[name], torch.full_like(values[name][:7], 9.0)])
    wide.load_state_dict(values)
    return wide


def test_the_teachers_tokens_are_not_stored_without_a_teacher_or_a_tail() -> None:
    distillation = Distillation(model(), model(seed=1), Objective())
    for k in (0, VOCABULARY):
        with pytest.raises(Refused, match="keep 1 to 60"):
            distillation.teacher_top_k(packed(), k)
    with pytest.raises(Refused, match="no teacher"):
        Distillation(model(), None, Objective(attention_weight=0.0)).teacher_top_k(packed(), 4)


def test_a_teacher_may_be_in_bfloat16_beside_a_student_in_float32() -> None:
    batch = packed()
    found = [
        Distillation(model(dtype=torch.float32), model(seed=1, dtype=dtype), ALL)(batch)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert found[1].total.dtype == torch.float32
    for name, part in found[0].parts.items():
        assert found[1].parts[name].item() == pytest.approx(part.item(), rel=0.05), name


def test_padding_of_a_vocabulary_changes_nothing() -> None:
    batch = packed()
    expected = Distillation(model(), model(seed=1), Objective())(batch).total.item()
    wider_teacher = Distillation(model(), padded(model(seed=1)), Objective(), vocabulary=VOCABULARY)
    assert wider_teacher(batch).total.item() == pytest.approx(expected)
    wider_student = Distillation(padded(model()), model(seed=1), Objective(), vocabulary=VOCABULARY)
    losses = wider_student(batch)
    losses.total.backward()
    assert losses.total.item() == pytest.approx(expected)
    gradient = wider_student.student.lm_head.weight.grad
    assert gradient[VOCABULARY:].abs().sum() == 0
    assert gradient[:VOCABULARY].abs().sum() > 0


def test_hidden_states_of_another_width_go_through_a_projection_that_learns() -> None:
    student, teacher, batch = model(hidden_size=8), model(layers=3, seed=1), packed()
    distillation = Distillation(student, teacher, ALL, MAP).to(torch.float64)
    assert [(one.in_features, one.out_features) for one in distillation.projections] == [(8, 16), (8, 16)]
    distillation(batch).total.backward()
    assert all(one.weight.grad.abs().sum() > 0 for one in distillation.projections)
    assert not len(Distillation(model(), teacher, ALL, MAP).projections)


def test_the_teacher_is_frozen_and_stays_in_evaluation_mode() -> None:
    distillation = Distillation(model(), model(seed=1), ALL).train()
    assert distillation.student.training
    assert not distillation.teacher.training
    distillation(packed()).total.backward()
    assert not gradients(distillation.teacher)
    assert all(p.grad is not None for p in distillation.student.parameters())


def test_the_models_answer_as_before_when_a_loss_was_computed_or_failed() -> None:
    student, teacher, batch = model(), model(seed=1), packed()
    before = student(batch.input_ids).logits
    distillation = Distillation(student, teacher, Objective())
    distillation(batch)
    torch.testing.assert_close(student(batch.input_ids).logits, before, atol=0, rtol=0)
    with pytest.raises(IndexError):
        distillation(replace(batch, input_ids=batch.input_ids + VOCABULARY))
    torch.testing.assert_close(student(batch.input_ids).logits, before, atol=0, rtol=0)


def test_only_attention_can_be_learnt() -> None:
    objective = Objective(task_weight=0.0, kl_weight=0.0, attention_weight=1.0)
    losses = Distillation(model(), model(seed=1), objective)(packed())
    losses.total.backward()
    assert losses.parts.keys() == {"attention"}
    assert 0 < losses.total.item() <= 2


def test_checkpointed_layers_give_the_same_gradients() -> None:
    student, teacher, batch = model(), model(layers=3, seed=1), packed()
    distillation = Distillation(student, teacher, ALL, MAP).train()
    distillation(batch).total.backward()
    expected = gradients(student)
    student.zero_grad()
    student.activation_checkpointing_enable()
    distillation(batch).total.backward()
    for name, one in gradients(student).items():
        torch.testing.assert_close(one, expected[name])


def test_pairs_are_balanced_between_refusals_and_answers() -> None:
    student = model()
    ids = torch.randint(0, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(3))
    labels = ids.clone()
    for row, first in enumerate((7, 2, 5, 3)):
        labels[row, :first] = IGNORE
    batch = Batch(ids, labels, torch.arange(9).expand(4, -1), pairs=True)
    objective = Objective(refusal_weight=2.0, attention_weight=0.0)
    losses = Distillation(student, None, objective)(batch)
    chances = student(ids).logits.log_softmax(-1)
    costs = [
        -sum(chances[row, at - 1, ids[row, at]] for at in range(first, 9)) / (9 - first)
        for row, first in enumerate((7, 2, 5, 3))
    ]
    expected = 2.0 * ((costs[0] + costs[2]) / 2 + (costs[1] + costs[3]) / 2) / 2
    assert losses.total.item() == pytest.approx(expected.item())
    assert (losses.tokens, losses.parts.keys()) == (4, {"refusal"})


def test_bfloat16_autocast_gives_nearly_the_same_loss_in_float32() -> None:
    student, teacher, batch = (*(model(seed=n, dtype=torch.float32) for n in (0, 1)), packed())
    distillation = Distillation(student, teacher, ALL)
    exact = distillation(batch)
    with torch.autocast("cpu", torch.bfloat16):
        short = distillation(batch)
    assert short.total.dtype == torch.float32
    assert short.total.item() == pytest.approx(exact.total.item(), rel=0.03)
    short.total.backward()
    assert all(p.grad.dtype == torch.float32 for p in student.parameters())


def test_a_sharded_student_has_the_same_loss_and_gradients(tmp_path: Path) -> None:
    """In a process of its own: gloo keeps its listening socket for as long as its process lives."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        assert apart.submit(sharded_equals_plain, tmp_path).result() is None


def sharded_equals_plain(place: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for root in ("student", "distillation"):
            compare(mesh, root)
    finally:
        dist.destroy_process_group()


def compare(mesh: DeviceMesh, root: str) -> None:
    batch = packed()

    def made() -> Distillation:
        student = model(dtype=torch.float32, tie_word_embeddings=True)
        return Distillation(student, model(layers=3, seed=1, dtype=torch.float32), ALL, MAP)

    plain, sharded = made(), made()
    expected = plain(batch)
    expected.total.backward()
    for one in (sharded.student, sharded.teacher):
        for layer in one.model.layers:
            fully_shard(layer, mesh=mesh)
    for one in (sharded,) if root == "distillation" else (sharded.student, sharded.teacher):
        fully_shard(one, mesh=mesh)
    for _ in range(2):  # the second finds weights as the first pass left them
        sharded.zero_grad()
        found = sharded(batch)
        found.total.backward()
    torch.testing.assert_close(found.total, expected.total)
    for (name, one), other in zip(plain.student.named_parameters(), sharded.student.parameters(), strict=True):
        torch.testing.assert_close(
            other.grad.full_tensor(), one.grad, msg=lambda told, name=name: f"{root} {name}: {told}"
        )
