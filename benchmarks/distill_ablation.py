"""What each part of the objective, and the choice of layers, is worth: the same teacher, data and budget, three seeds.

The 135M chat model as teacher, a student of twenty of its thirty layers, the conversations that come with the service, bf16. A
row is whole jobs of the trainer; KL, top-1 agreement and perplexity are on held-out records, which differ with the seed. The
differences to the whole objective are within a seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import Report, Spread, Table
from services.distiller.place import Place
from services.distiller.spec import Spec
from tests.distiller import tiny
from tests.processes import ROOT

WHOLE = "whole: λ 0.8, γ 0.2"
FORMS: dict[str, dict[str, Any]] = {
    WHOLE: {},
    "no attention: γ = 0": {"objective": {"attention_weight": 0.0}},
    "no KL: λ = 0": {"objective": {"kl_weight": 0.0}},
    "whole, layers evenly spaced": {"student": {"choice": "every_kth"}},
}
_STEPS, _SEQUENCES, _TOKENS, _HELD_OUT = 12, 4, 256, 3000
Figures = dict[str, float]


def run(quick: bool) -> Report:
    """Measure, in about forty minutes. Quick: a tiny model of random weights, one seed."""
    found: dict[str, list[Figures]] = {form: [] for form in FORMS}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if quick:
            tiny.save(root / "models" / "tiny")
        for seed in range(1 if quick else 3):
            chosen: dict[str, Any] = {}
            for form, changes in FORMS.items():
                place = Place(root / "jobs" / f"{len(found[form])}-{list(FORMS).index(form)}")
                place.write_spec(_spec(changes, chosen, seed, quick))
                found[form].append(done(place, root))
                if form == WHOLE:  # measured once for a seed
                    chosen = {"layer_indices": [layer for _, layer in _notes(place)["layer_map"]]}
    steps, tokens = (2, 64) if quick else (_STEPS, _TOKENS)
    table = Table(
        f"After {steps} steps of {_SEQUENCES} × {tokens} tokens",
        ("objective", "KL", "KL − whole's", "top-1", "perplexity", "KL before", "top-1 before"),
    )
    for form, rows in found.items():
        far = [row["kl"] - whole["kl"] for row, whole in zip(rows, found[WHOLE], strict=True)]
        names = ("kl_untrained", "top1_untrained")
        table.add(
            form,
            Spread.of([row["kl"] for row in rows]),
            Spread.of(far),
            Spread.of([row["top1"] for row in rows]),
            median(row["perplexity"] for row in rows),
            *(median(row[name] for row in rows) for name in names),
        )
    return Report([table])


def _spec(changes: dict[str, Any], chosen: dict[str, Any], seed: int, quick: bool) -> Spec:
    layers = 2 if quick else 20
    student = {"layers": layers, **chosen, **changes.get("student", {})}
    if "choice" in student:
        student.pop("layer_indices", None)
    training = {
        "steps": _STEPS,
        "batch_sequences": _SEQUENCES,
        "micro_sequences": 2,
        "dtype": "bfloat16",
        "device": "cpu",
        "seed": seed,
        **({"steps": 2, "threads": 1} if quick else {}),
    }
    return Spec.model_validate(
        {
            "teacher": "tiny" if quick else "",
            "student": student,
            "data": {"sequence_tokens": 64 if quick else _TOKENS},
            "objective": changes.get("objective", {}),
            "training": training,
            "evaluation": {"tokens": 200 if quick else _HELD_OUT, "battles": 0, "refusal_pairs": 0},
        }
    )


def done(place: Place, root: Path) -> Figures:
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
    figures: Figures = json.loads((place.report / "report.json").read_bytes())["figures"]
    return figures


def _notes(place: Place) -> dict[str, Any]:
    notes: dict[str, Any] = json.loads((place.initial / "student.json").read_bytes())
    return notes
