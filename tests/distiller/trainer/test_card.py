"""The model card and the hashes beside a student."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import yaml

from services.common.int8.notes import read_notes
from services.distiller.place import DONE
from services.distiller.spec import Objective
from services.distiller.trainer.card import objective
from tests.distiller.trainer.conftest import Workshop


def test_a_student_says_what_it_is_and_its_hashes_are_right(workshop: Workshop) -> None:
    place = workshop.job(training={"steps": 1}, evaluation={"battles": 0, "refusal_pairs": 0})
    assert workshop.run(place) == DONE
    _, head, text = (place.student / "README.md").read_text().split("---\n")
    assert yaml.safe_load(head) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "tiny",
        "license": "other",
        "license_name": "that-of-the-teacher",
        "tags": ["distillation"],
    }
    assert "- **How it was made**: layers 0, 3 of 4, evenly spaced" in text
    assert "- **Data**: `c.jsonl`: 54 records to learn from, 6 held out" in text
    assert "1 steps of 4 sequences of 64 tokens" in text
    assert "- **Last losses**, by part, at step 1 after" in text
    kl = json.loads((place.report / "report.json").read_bytes())["figures"]["kl"]
    assert f"| kl | {kl:.4g} |" in text
    named = checked(place.student)
    assert named == {file.name for file in place.student.iterdir()} - {"SHA256SUMS"}
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= named
    assert not place.student_int8.exists()
    assert "int8" not in json.loads((place.report / "report.json").read_bytes())


def checked(directory: Path) -> set[str]:
    """The files whose hashes `sha256sum` finds to be right; a wrong one is an error."""
    done = subprocess.run(
        [shutil.which("sha256sum") or "sha256sum", "-c", "SHA256SUMS"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.partition(":")[0] for line in done.stdout.splitlines()}


def test_a_student_in_8_bits_has_a_card_and_hashes_of_its_own(workshop: Workshop) -> None:
    place = workshop.job(
        training={"steps": 1},
        evaluation={"battles": 0, "refusal_pairs": 0},
        int8={"kind": "w8a8", "threshold": 1e-7, "goal": 1e-7, "repairs": ["smooth"]},
    )
    assert workshop.run(place) == DONE
    notes = read_notes(place.student_int8)
    _, head, text = (place.student_int8 / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "ladr"
    assert yaml.safe_load(head)["tags"] == ["distillation", "int8"]
    assert "- **8 bits**: `w8a8` (weights and activations) in 15 linear layers, 0 of them with an adapter" in text
    assert f"{notes.kl_before:.4g} before repair, {notes.kl:.4g} after it" in text
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")] == [
        *("| step", "| quantised", "| smooth", "| saved")
    ]
    named = checked(place.student_int8)
    assert named == {file.name for file in place.student_int8.iterdir()} - {"SHA256SUMS"}
    assert {"README.md", "int8.json", "model-00000.safetensors", "tokenizer.json"} <= named
    assert "8 bits" not in (place.student / "README.md").read_text()


def test_an_objective_is_told_without_what_weighs_nothing() -> None:
    assert objective(Objective()) == (
        "1 · cross-entropy + 0.8 · τ² · kl at τ = 3 + 0.2 · squared distance of attention"
    )
    assert objective(Objective(task_weight=0, kl_weight=0, attention_weight=0, hidden_weight=2)) == (
        "2 · squared distance of hidden states"
    )
