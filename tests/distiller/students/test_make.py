"""The student that a job asks for."""

from __future__ import annotations

import pytest
import torch

from services.distiller.objective.distillation import Distillation
from services.distiller.refused import Refused
from services.distiller.spec import Objective, Student
from services.distiller.students import make
from services.distiller.students.depth import most_influential
from services.distiller.students.influence import block_influence
from tests.distiller.objective.tiny import model, packed


def test_two_thirds_of_the_layers_by_influence_are_kept_unless_told() -> None:
    teacher = model(layers=6)
    made = make(teacher, Student(), [packed()])
    kept = most_influential(block_influence(teacher, [packed()]), 4)
    assert made.layer_map == tuple(enumerate(kept))
    assert made.description == f"layers {', '.join(map(str, kept))} of 6, by block influence"


def test_layers_are_kept_evenly_or_as_they_are_named() -> None:
    teacher = model(layers=5)
    assert make(teacher, Student(layers=3, choice="every_kth"), []).layer_map == ((0, 0), (1, 2), (2, 4))
    made = make(teacher, Student(layer_indices=(1, 4)), [])
    assert made.layer_map == ((0, 1), (1, 4))
    assert made.description == "layers 1, 4 of 5, as given"


def test_a_narrower_student_has_every_layer() -> None:
    made = make(model(), Student(kind="width", feed_forward=0.67, heads=0.5), [packed()])
    assert made.layer_map == ((0, 0), (1, 1))
    assert made.description == "all 2 layers, feed-forward 16 of 24, attention heads 2 of 4"


def test_any_model_can_be_the_student() -> None:
    other = model(layers=3, seed=4)
    made = make(model(layers=6), Student(kind="model", source="small"), [], load={"small": other}.__getitem__)
    assert made.model is other
    assert made.layer_map == ((0, 1), (1, 3), (2, 5))
    assert made.description == "the model small"


@pytest.mark.parametrize("student", [Student(layers=2), Student(kind="width"), Student(layer_indices=(0,))])
def test_a_student_learns_though_its_teacher_is_frozen(student: Student) -> None:
    teacher = model(layers=3)
    Distillation(model(layers=1), teacher, Objective())  # freezes it
    made = make(teacher, student, [packed()])
    assert made.model.training
    Distillation(made.model, teacher, Objective(hidden_weight=1.0), made.layer_map)(packed()).total.backward()
    assert all(p.grad is not None for p in made.model.parameters())
    assert all(p.grad is None for p in teacher.parameters())
    assert made.model.dtype == teacher.dtype == torch.float64


def test_more_layers_than_there_are_are_refused() -> None:
    with pytest.raises(Refused) as refused:
        make(model(layers=3), Student(layers=4), [packed()])
    assert refused.value.reason == "LAYERS_MISMATCH"
