"""What each part of the objective, and the choice of layers, is worth: the same teacher, data and budget, three seeds.

The 135M chat model as teacher, a student of twenty of its thirty layers, the conversations that come with the service, bf16. A
row is three jobs of the trainer; KL, top-1 agreement and perplexity are on held-out records, which differ with the seed. The
differences to the whole objective are within a seed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.apart import apart
from benchmarks.report import Report, Spread, Table
from ladr.config_distiller import DistillerSettings
from ladr.v1.distiller_pb2 import DistillPhase
from services.distiller.place import Place
from services.distiller.report.notes import Notes
from services.distiller.spec import Spec
from services.distiller.trainer.agreeing import agreement
from services.distiller.trainer.job import Job
from services.distiller.trainer.measuring import COMPARED, Measuring
from services.distiller.trainer.meter import Meter
from services.distiller.trainer.prepare import prepare
from services.distiller.trainer.ranks import Ranks
from services.distiller.trainer.save import save
from services.distiller.trainer.stop import Stop
from services.distiller.trainer.train import train
from tests.distiller import tiny

WHOLE, EVENLY = "whole: λ 0.8, γ 0.2", "whole, layers evenly spaced"
FORMS: dict[str, dict[str, Any]] = {
    WHOLE: {},
    "no attention: γ = 0": {"objective": {"attention_weight": 0.0}},
    "no KL: λ = 0": {"objective": {"kl_weight": 0.0}},
    EVENLY: {"student": {"choice": "every_kth"}},
}
_STEPS, _SEQUENCES, _TOKENS, _HELD_OUT = 8, 4, 256, 2000
_FIGURES = ("kl", "top1", "perplexity")
Figures = dict[str, float]


def run(quick: bool) -> Report:
    """Measure, in a quarter of an hour. Quick: a tiny model of random weights, one seed."""
    forms = [form for form in FORMS if not quick or form in (WHOLE, EVENLY)]
    found: dict[str, list[dict[str, Figures]]] = {form: [] for form in forms}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if quick:
            tiny.save(root / "models" / "tiny")
        for seed in range(1 if quick else 3):
            chosen: dict[str, Any] = {}
            for form in forms:
                place = Place(root / "jobs" / f"{len(found[form])}-{forms.index(form)}")
                place.write_spec(_spec(FORMS[form], chosen, seed, quick))
                found[form].append(_done(place, root))
                if form == WHOLE:  # measured once for a seed
                    chosen = {"layer_indices": [layer for _, layer in _notes(place)["layer_map"]]}
    steps, tokens = (2, 64) if quick else (_STEPS, _TOKENS)
    table = Table(
        f"After {steps} steps of {_SEQUENCES} × {tokens} tokens",
        ("objective", "KL", "KL − whole's", "top-1", "perplexity", "KL before", "top-1 before"),
    )
    for form, rows in found.items():
        student = [row["student"] for row in rows]
        far = [row["kl"] - whole["student"]["kl"] for row, whole in zip(student, found[WHOLE], strict=True)]
        table.add(
            form,
            Spread.of([row["kl"] for row in student]),
            Spread.of(far),
            Spread.of([row["top1"] for row in student]),
            median(row["perplexity"] for row in student),
            *(median(row["untrained"][name] for row in rows) for name in ("kl", "top1")),
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


def _done(place: Place, root: Path) -> dict[str, Figures]:
    """What the student is like before its training and after it."""
    found: dict[str, Figures] = apart("benchmarks.distill_ablation", str(place.root), str(root))
    return found


def _job(place: Place, root: Path) -> dict[str, Figures]:
    """The trainer's phases in this process, up to the agreement with the teacher."""
    settings = DistillerSettings(state=root / "state", model_root=root / "models", data_root=root / "data")
    spec = place.read_spec()
    torch.set_num_threads(spec.training.threads or settings.threads)
    job = Job(place, spec, settings, Ranks(), "cpu", Stop(), Meter(place, lambda: 0))
    for phase in (prepare, train, save):
        phase(job)
    job.teacher = job.student = None
    job.meter.begin(DistillPhase.DISTILL_PHASE_EVALUATE, len(COMPARED))
    found = agreement(Measuring(job, Notes(place.report)))
    return {name: {key: one[key] for key in _FIGURES} for name, one in zip(COMPARED, found, strict=True)}


def _notes(place: Place) -> dict[str, Any]:
    notes: dict[str, Any] = json.loads((place.initial / "student.json").read_bytes())
    return notes


if __name__ == "__main__":
    print(json.dumps(_job(Place(Path(sys.argv[1])), Path(sys.argv[2]))))
