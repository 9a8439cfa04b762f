"""An image encoder's students: compute saved, classes and neighbours agreed on, against the same before training.

The teacher is a ViT of twelve layers that learns handwritten digits (scikit-learn: 1,797 pictures of 8 × 8) here, in a minute.
Each row is a whole job of the trainer, on the same pictures and budget; a third is held out. `retrieval` is the share of
the teacher's ten nearest neighbours that the student finds too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from transformers.utils import logging

from benchmarks.report import Report, Table
from services.distiller.place import Place
from services.distiller.spec import Spec
from tests.processes import ROOT

FORMS: dict[str, dict[str, Any]] = {
    "5 of 12 layers": {"student": {"layers": 5}},
    "… and no attention: γ = 0": {"student": {"layers": 5}, "objective": {"attention_weight": 0.0}},
    "… and no KL: λ = 0": {"student": {"layers": 5}, "objective": {"kl_weight": 0.0}},
    "… and hidden states": {"student": {"layers": 5}, "objective": {"hidden_weight": 1.0}},
    "all layers, narrower": {"student": {"kind": "width", "feed_forward": 0.25, "heads": 0.5}},
}
_SIDE, _PATCH = 16, 4


def run(quick: bool) -> Report:
    """Measure, in some minutes. Quick: few steps, and fewer pictures."""
    logging.disable_progress_bar()
    torch.set_num_threads(2)
    table = Table(
        "Students of a ViT of 12 layers",
        ("student", "FLOPs saved", "top-1 before", "top-1", "retrieval before", "retrieval", "accuracy", "teacher's"),
    )
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _gallery(root / "data", 120 if quick else 1797)
        _teacher(root / "models" / "teacher", 3 if quick else 400)
        for number, (form, changes) in enumerate(list(FORMS.items())[: 1 if quick else None]):
            place = Place(root / "jobs" / str(number))
            place.write_spec(_spec(changes, quick))
            found = _done(place, root)
            keys = ("saved_total", "top1_untrained", "top1", "retrieval_untrained", "retrieval", "accuracy")
            table.add(form, *(found[key] for key in keys), found["accuracy_teacher"])
    return Report([table])


def _gallery(data: Path, count: int) -> None:
    digits = load_digits()
    (data / "digits").mkdir(parents=True)
    lines = []
    for number in range(count):
        name = f"digits/{number}.png"
        grey = (digits.images[number] * 255 / 16).astype(np.uint8)
        Image.fromarray(grey).resize((_SIDE, _SIDE)).convert("RGB").save(data / name)
        lines.append(json.dumps({"image": name, "label": int(digits.target[number])}))
    (data / "digits.jsonl").write_text("\n".join(lines) + "\n")


def _teacher(directory: Path, steps: int) -> None:
    """Trained on the first two thirds of the file: whatever a job holds out, it saw some of."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=96,
        num_hidden_layers=12,
        num_attention_heads=4,
        intermediate_size=384,
        image_size=_SIDE,
        patch_size=_PATCH,
        num_labels=10,
    )
    model, process = (
        ViTForImageClassification(config).train(),
        ViTImageProcessorPil(size={"height": _SIDE, "width": _SIDE}),
    )
    lines = [json.loads(line) for line in (directory.parents[1] / "data" / "digits.jsonl").read_text().splitlines()]
    lines = lines[: len(lines) * 2 // 3]
    images = [Image.open(directory.parents[1] / "data" / line["image"]) for line in lines]
    pixels, labels = (
        process(images, return_tensors="pt")["pixel_values"],
        torch.tensor([line["label"] for line in lines]),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for _ in range(steps):
        some = torch.randint(len(labels), (64,))
        functional.cross_entropy(model(pixels[some]).logits, labels[some]).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)
    process.save_pretrained(directory)


def _spec(changes: dict[str, Any], quick: bool) -> Spec:
    training = {"steps": 2 if quick else 200, "batch_sequences": 32, "micro_sequences": 32, "device": "cpu"}
    return Spec.model_validate(
        {
            "teacher": "teacher",
            "data": {"path": "digits.jsonl", "holdout": 0.33},
            "training": training,
            **changes,
        }
    )


def _done(place: Place, root: Path) -> dict[str, float]:
    """The figures of the job once it is done."""
    settings = {"STATE": root / "state", "MODEL_ROOT": root / "models", "DATA_ROOT": root / "data", "THREADS": 2}
    environment = {f"LADR_DISTILLER__{name}": str(value) for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-m", "services.distiller.trainer", str(place.root)],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{place.root.name}: {place.read_failure()}\n{done.stdout[-2000:]}")
    figures: dict[str, float] = json.loads((place.report / "report.json").read_bytes())["figures"]
    return figures
