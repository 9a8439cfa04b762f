"""Jobs of image encoders: from pictures to a student with its report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForImageClassification

from services.distiller.data.corpus import scan
from services.distiller.data.images import Pictures
from services.distiller.place import DONE, FAILED, STOPPED
from services.distiller.spec import Spec
from services.distiller.trainer import models
from services.distiller.trainer.evaluate_images import held_out
from services.distiller.trainer.job import Job
from services.distiller.trainer.stop import Stop
from tests.distiller.images import small
from tests.distiller.trainer.conftest import Workshop, curve, weights
from tests.distiller.trainer.test_interrupted import StopsAfter


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("teacher")
    small.save(small.trained(small.encoder(4)), directory)
    return directory


@pytest.fixture
def gallery(workshop: Workshop, teacher: Path) -> Workshop:
    shutil.copytree(teacher, workshop.root / "models" / "encoder")
    small.write(workshop.root / "data" / "gallery", 120)
    return workshop


JOB: dict[str, Any] = {
    "teacher": "encoder",
    "student": {"layers": 1},
    "data": {"path": "gallery/pictures.jsonl", "holdout": 0.3},
    "objective": {"temperature": 1.0},
    "training": {
        "steps": 40,
        "batch_sequences": 16,
        "micro_sequences": 8,
        "learning_rate": 2e-3,
        "checkpoint_steps": 10,
    },
}


def test_a_student_encoder_comes_to_agree_with_its_teacher(gallery: Workshop) -> None:
    place = gallery.job(**JOB)
    assert gallery.run(place) == DONE
    report = json.loads((place.report / "report.json").read_bytes())
    figures = report["figures"]
    assert figures["accuracy_teacher"] > 0.9
    assert figures["saved_total"] > 0.55
    assert figures["top1"] > figures["top1_untrained"] and figures["kl"] < figures["kl_untrained"]
    assert 0 <= figures["retrieval_untrained"] <= 1 and figures["retrieval"] > 0.3
    assert len(curve(place)) == 40
    assert {"config.json", "model.safetensors", "preprocessor_config.json"} <= {
        file.name for file in place.student.iterdir()
    }
    read_again = AutoModelForImageClassification.from_pretrained(place.student)
    assert read_again.config.num_hidden_layers == 1
    assert "<html" in (place.report / "report.html").read_text()


def test_an_encoder_may_learn_from_labels_alone(gallery: Workshop) -> None:
    objective = {"kl_weight": 0, "attention_weight": 0}
    place = gallery.job(**{**JOB, "objective": objective, "training": {**JOB["training"], "steps": 4}})
    assert gallery.run(place) == DONE
    assert all(losses.keys() == {"total", "task"} for losses in curve(place).values())


def test_an_encoder_without_classes_learns_features_also_where_a_part_of_it_has_no_gradient(gallery: Workshop) -> None:
    small.save(small.encoder(3, classes=0), gallery.root / "models" / "plain")  # read again it has a pooler
    training = {**JOB["training"], "steps": 6, "checkpoint_steps": 2}
    one, other = (gallery.job(name, **{**JOB, "teacher": "plain", "training": training}) for name in ("one", "other"))
    assert gallery.run(one) == DONE
    assert gallery.run(other, StopsAfter(other, 3)) == STOPPED
    assert gallery.run(other) == DONE
    assert weights(one) == weights(other)
    assert {"features", "attention", "total"} == set(curve(one)[6])
    assert "retrieval" in json.loads((one.report / "report.json").read_bytes())["figures"]


def test_an_interrupted_training_on_pictures_ends_as_one_that_was_not(gallery: Workshop) -> None:
    one, other = gallery.job("one", **JOB), gallery.job("other", **JOB)
    assert gallery.run(one) == DONE
    assert gallery.run_apart(other, "stop-step-13") != DONE
    assert gallery.run(other) == DONE
    assert weights(one) == weights(other)
    assert curve(one) == curve(other)


def test_of_a_file_that_is_sorted_by_class_every_class_is_measured(gallery: Workshop) -> None:
    directory = gallery.root / "data" / "gallery"
    lines = (directory / "pictures.jsonl").read_text().splitlines()
    (directory / "pictures.jsonl").write_text("\n".join(sorted(lines, key=lambda line: json.loads(line)["label"])))
    pictures = Pictures(gallery.settings.data_root, directory, small.CLASSES)
    corpus = scan(directory / "pictures.jsonl", 0.5, 0, pictures.read)
    processor = models.image_processor(str(gallery.root / "models" / "encoder"))
    spec = Spec.model_validate({"evaluation": {"tokens": 200}})
    nothing: Any = None
    job = Job(nothing, spec, gallery.settings, nothing, "cpu", Stop(), nothing, processor)
    job.corpus, job.pictures, job.patches = corpus, pictures, 16
    labels = [int(label) for batch in held_out(job) for label in batch.labels]
    assert len(labels) == 12
    assert set(labels) == set(range(small.CLASSES))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": {"path": ""}}, "DATA_PATH"),
        ({"data": {"path": "c.jsonl"}}, "DATA_BROKEN"),
        ({"objective": {"teacher_top_k": 2, "kl_weight": 0.8}}, "UNSUPPORTED"),
        ({"student": {"layers": 9}}, "LAYERS_MISMATCH"),
        (
            {"data": {"path": "gallery/bare.jsonl"}, "objective": {"kl_weight": 0, "attention_weight": 0}},
            "ALL_LABELS_MASKED",
        ),
    ],
)
def test_what_an_image_encoder_cannot_have_is_refused_before_the_first_step(
    changes: dict[str, Any], reason: str, gallery: Workshop
) -> None:
    bare = [{"image": f"pictures/{n}.png"} for n in range(4)]
    (gallery.root / "data" / "gallery" / "bare.jsonl").write_text("\n".join(map(json.dumps, bare)))
    place = gallery.job(
        **{group: {**JOB[group], **changes.get(group, {})} for group in JOB if group != "teacher"}, teacher="encoder"
    )
    assert gallery.run(place) == FAILED
    assert place.read_failure().reason == reason
    assert not curve(place)


@pytest.mark.parametrize(("kept", "said"), [(12, "line 1 of the data"), (60, "then resume")], ids=["header", "body"])
def test_a_broken_picture_is_named(kept: int, said: str, gallery: Workshop) -> None:
    for file in (gallery.root / "data" / "gallery" / "pictures").iterdir():
        file.write_bytes(file.read_bytes()[:kept])
    place = gallery.job(**JOB)
    assert gallery.run(place) == FAILED
    failure = place.read_failure()
    assert failure.reason == "DATA_BROKEN"
    assert ".png" in failure.message and said in failure.message and str(gallery.root) not in failure.message
    assert not curve(place)
