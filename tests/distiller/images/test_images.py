"""Image encoders: the loss against a dumb one, students, agreement, and a job from pictures to report."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional
from transformers import (
    AutoModelForImageClassification,
    CLIPVisionConfig,
    CLIPVisionModel,
    DeiTConfig,
    DeiTModel,
    Dinov2Config,
    Dinov2Model,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from services.distiller.data.corpus import scan
from services.distiller.data.images import NO_LABEL, Pictures
from services.distiller.data.record import Broken
from services.distiller.layers import layers
from services.distiller.objective.images import ImageBatch, ImageDistillation, run, see
from services.distiller.refused import Refused
from services.distiller.report.image_agreement import retrieval
from services.distiller.spec import Objective, Student
from services.distiller.students import make
from services.distiller.students.cost import image_cost
from services.distiller.students.width import narrow
from services.distiller.trainer import models
from tests.distiller.images import small


def batch(count: int = 3, seed: int = 0) -> ImageBatch:
    torch.manual_seed(seed)
    labels = torch.arange(count) % small.CLASSES
    labels[0] = NO_LABEL
    return ImageBatch(torch.randn(count, 3, small.SIDE, small.SIDE), labels)


def dumb(student: Any, teacher: Any, pictures: ImageBatch, objective: Objective) -> dict[str, float]:
    """Each part, picture by picture, in float64, from eager maps and all hidden states."""
    found = {"task": 0.0, "kl": 0.0, "attention": 0.0, "hidden": 0.0}
    for model in (student, teacher):
        model.set_attn_implementation("eager")
    for pixels, label in zip(pictures.pixels, pictures.labels, strict=True):
        one, other = (
            model(pixels[None].double(), output_attentions=True, output_hidden_states=True)
            for model in (student, teacher)
        )
        if label != NO_LABEL:
            found["task"] -= float(one.logits[0].log_softmax(0)[label])
        hot = objective.temperature
        p, q = (other.logits[0] / hot).log_softmax(0), (one.logits[0] / hot).log_softmax(0)
        found["kl"] += hot**2 * float((p.exp() * (p - q)).sum())
        found["attention"] += float((one.attentions[-1] - other.attentions[-1]).square().sum(-1).mean())
        for mine, theirs in ((0, 1), (1, 3)):
            found["hidden"] += (
                float((one.hidden_states[mine + 1] - other.hidden_states[theirs + 1]).square().mean()) / 2
            )
    weight = {
        "task": objective.task_weight,
        "kl": objective.kl_weight,
        "attention": objective.attention_weight,
        "hidden": objective.hidden_weight,
    }
    return {name: weight[name] * value / len(pictures.labels) for name, value in found.items()}


def test_the_loss_is_what_a_dumb_one_finds() -> None:
    student, teacher = small.encoder(2).double(), small.encoder(4, seed=1).double()
    objective = Objective(hidden_weight=0.5)
    pictures = batch()
    doubles = ImageBatch(pictures.pixels.double(), pictures.labels)
    with torch.no_grad():
        found = ImageDistillation(student, teacher, objective, ((0, 1), (1, 3)))(doubles)
        wanted = dumb(student, teacher, pictures, objective)
    assert {name: float(part) for name, part in found.parts.items()} == pytest.approx(wanted, rel=1e-5)
    assert float(found.total) == pytest.approx(sum(wanted.values()), rel=1e-5)


def test_pictures_without_labels_have_the_same_parts_and_a_gradient() -> None:
    student, teacher = small.encoder(2), small.encoder(4, seed=1)
    labelled = batch()
    without = ImageBatch(labelled.pixels, torch.full_like(labelled.labels, NO_LABEL))
    module = ImageDistillation(student, teacher, Objective(), ())
    assert list(module(without).parts) == list(module(labelled).parts)
    assert module(without).parts["task"] == 0
    alone = ImageDistillation(student, teacher, Objective(kl_weight=0, attention_weight=0), ())(without)
    alone.total.backward()
    assert not student.classifier.weight.grad.any()


def test_micro_batches_sum_to_the_loss_of_the_whole_batch() -> None:
    student, teacher = small.encoder(2), small.encoder(4, seed=1)
    module = ImageDistillation(student, teacher, Objective(hidden_weight=0.5), ((0, 1), (1, 3)))
    whole = batch(6)
    parts = [ImageBatch(whole.pixels[part], whole.labels[part]) for part in (slice(0, 2), slice(2, 6))]
    with torch.no_grad():
        assert sum(float(module(part, 6).total) for part in parts) == pytest.approx(
            float(module(whole).total), rel=1e-5
        )


def test_encoders_without_classes_are_compared_by_their_features() -> None:
    student, teacher = small.encoder(2, classes=0, width=16), small.encoder(2, classes=0, seed=1)
    module = ImageDistillation(student, teacher, Objective(), ())
    losses = module(batch())
    assert set(losses.parts) == {"features", "attention"}
    losses.total.backward()
    assert len(module.projections) == 1 and module.projections[0].weight.grad.any()
    with torch.no_grad():
        same = ImageDistillation(teacher, teacher, Objective(), ())(batch())
    assert float(same.total) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("student", "reason"),
    [
        (lambda: small.encoder(2, classes=3), "CLASSES_MISMATCH"),
        (lambda: small.encoder(2, classes=0), "CLASSES_MISMATCH"),
        (lambda: small.encoder(2, patch_size=8), "PATCHES_MISMATCH"),
    ],
)
def test_encoders_that_do_not_go_together_are_refused(student: Any, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        ImageDistillation(student(), small.encoder(2), Objective(), ())
    assert refused.value.reason == reason


def test_a_student_by_depth_has_the_teachers_layers_and_fewer_operations() -> None:
    teacher = small.encoder(6)
    made = make(teacher, Student(layers=2), [batch(8)], run=run)
    kept = [other for _, other in made.layer_map]
    for one, other in made.layer_map:
        mine, theirs = made.model.vit.layers[one].state_dict(), teacher.vit.layers[other].state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert kept[0] == 0 and kept[-1] == 5
    assert image_cost(made.model).saved(image_cost(teacher))["total"] > 0.55


def test_a_narrow_student_without_loss_is_the_teacher_and_a_narrower_one_can_be_read_again(tmp_path: Path) -> None:
    teacher = small.encoder(3)
    pictures = batch(4)
    whole = narrow(teacher, 1.0, 1.0, [pictures], run).model
    assert torch.equal(whole(pictures.pixels).logits, teacher(pictures.pixels).logits)
    thin = narrow(teacher, 0.25, 0.5, [pictures], run).model
    assert image_cost(thin).saved(image_cost(teacher))["total"] > 0.55
    thin.save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert torch.equal(again(pictures.pixels).logits, thin(pictures.pixels).logits)


def test_the_cost_of_a_picture_is_what_its_matrices_multiply() -> None:
    model = small.encoder(2)
    patches, width, inner = 16, 32, 64
    found = image_cost(model)
    assert found.rest == patches * (3 * small.PATCH**2 * width + 2 * (4 * width * width + 2 * width * inner))
    assert found.attention == 2 * 2 * patches**2 * width
    assert found.head == width * small.CLASSES


@settings(max_examples=30)
@given(count=st.integers(2, 12), nearest=st.integers(1, 12), seed=st.integers(0, 99))
def test_retrieval_counts_what_both_find(count: int, nearest: int, seed: int) -> None:
    torch.manual_seed(seed)
    one, other = (functional.normalize(torch.randn(count, width), dim=-1) for width in (4, 6))
    few = min(nearest, count - 1)
    shared = 0
    for asked in range(count):
        found = []
        for vectors in (one, other):
            far = [(-float(vectors[asked] @ vectors[n]), n) for n in range(count) if n != asked]
            found.append({n for _, n in sorted(far)[:few]})
        shared += len(found[0] & found[1])
    assert retrieval(one, other, nearest) == pytest.approx(shared / (few * count))
    assert retrieval(one, one, nearest) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "the path of a picture"),
        ('{"image": 3}', "the path of a picture"),
        ('{"image": "a.png", "label": -1}', "number of a class"),
        ('{"image": "a.png", "label": 4}', "classes 0 to 3"),
        ('{"image": "b.png"}', "no picture"),
        ('{"image": "../../etc/passwd"}', "outside the data root"),
        ("{", "not JSON"),
        ('{"image": "a.png", "label": 18446744073709551616}', "number of a class"),
        ('{"image": "a\\ud800.png"}', "half a character"),
        ('{"image": "a\\u0000.png"}', "not a path"),
    ],
)
def test_a_line_that_names_no_picture_is_refused(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(Broken, match=said):
        Pictures(tmp_path, tmp_path, 0 if "18446" in line else small.CLASSES).read(line.encode())


def opened(directory: Path, image: Any, **options: Any) -> Any:
    """A picture as it is learned from, once it was saved in some form."""
    image.save(directory / "a.tiff", **options)
    file = directory / "c.jsonl"
    file.write_text('{"image": "a.tiff"}\n{"image": "a.tiff", "label": 1}\n')
    pictures = Pictures(directory, directory)
    corpus = scan(file, 0.1, 0, pictures.checked)
    return np.asarray(pictures.opened(corpus, int(corpus.train[0]))[0])


def test_a_picture_of_16_bits_is_no_brighter_than_it_was(tmp_path: Path) -> None:
    grey = np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16)
    assert (opened(tmp_path, Image.fromarray(grey)) == (grey // 256)[..., None]).all()


def test_a_picture_whose_white_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^line 1 .* 8 or 16 bits"):
        opened(tmp_path, Image.fromarray(np.ones((4, 4), dtype=np.float32)))


def test_a_picture_that_is_taken_away_meanwhile_is_named(tmp_path: Path) -> None:
    small.write(tmp_path / "g", 4)
    pictures = Pictures(tmp_path, tmp_path / "g")
    corpus = scan(tmp_path / "g" / "pictures.jsonl", 0.1, 0, pictures.checked)
    shutil.rmtree(tmp_path / "g" / "pictures")
    with pytest.raises(Refused, match=r"no picture pictures/\d\.png") as refused:
        pictures.opened(corpus, int(corpus.train[0]))
    assert refused.value.reason == "DATA_CHANGED"


KINDS = (
    (DeiTConfig, DeiTModel),
    (Dinov2Config, Dinov2Model),
    (CLIPVisionConfig, CLIPVisionModel),
    (SiglipVisionConfig, SiglipVisionModel),
)


@pytest.mark.parametrize(("config", "kind"), KINDS, ids=[kind.__name__ for _, kind in KINDS])
def test_encoders_of_other_families_have_students_by_depth(config: Any, kind: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    teacher = kind(
        config(
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=small.SIDE,
            patch_size=small.PATCH,
        )
    ).eval()
    pictures = batch(4)
    made = make(teacher, Student(layers=2), [pictures], run=run)
    module = ImageDistillation(made.model, teacher, Objective(hidden_weight=0.5), made.layer_map)
    losses = module(pictures)
    losses.total.backward()
    assert set(losses.parts) == {"features", "attention", "hidden"}
    assert all(one.grad is not None for one in layers(made.model)[0].parameters())
    made.model.save_pretrained(tmp_path)
    again = models.weights(str(tmp_path)).eval()
    made.model.eval()
    with torch.no_grad():
        assert torch.equal(see(again, pictures).features, see(made.model, pictures).features)
