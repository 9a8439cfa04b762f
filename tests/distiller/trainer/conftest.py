"""A workshop: model root, data root and jobs of a test, which run in the test's process or in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ladr.config_distiller import DistillerSettings
from ladr.v1.distiller_pb2 import DistillProgress
from services.distiller.place import Place
from services.distiller.spec import Spec
from services.distiller.trainer.__main__ import work
from services.distiller.trainer.stop import Stop
from tests.distiller import tiny
from tests.processes import ROOT

BASE = {
    "teacher": "tiny",
    "student": {"layers": 2, "choice": "every_kth"},
    "data": {"path": "c.jsonl", "sequence_tokens": 64, "holdout": 0.1},
    "training": {
        "steps": 12,
        "batch_sequences": 4,
        "micro_sequences": 2,
        "device": "cpu",
        "threads": 1,
        "checkpoint_steps": 4,
    },
    "evaluation": {"battles": 0, "refusal_pairs": 0},
}


@dataclass(frozen=True)
class Workshop:
    root: Path

    @property
    def settings(self) -> DistillerSettings:
        return DistillerSettings(
            state=self.root / "state", model_root=self.root / "models", data_root=self.root / "data"
        )

    @property
    def environment(self) -> dict[str, str]:
        own = {
            f"LADR_DISTILLER__{name.upper()}": str(getattr(self.settings, name))
            for name in ("state", "model_root", "data_root")
        }
        return {**os.environ, **own, "PYTHONPATH": str(ROOT)}

    def job(self, name: str = "job", **changes: dict[str, Any] | str) -> Place:
        """A job's directory; the changes go over `BASE`, group by group."""
        spec: dict[str, Any] = dict(BASE)
        for group, change in changes.items():
            spec[group] = {**spec.get(group, {}), **change} if isinstance(change, dict) else change
        place = Place(self.root / "state" / "jobs" / name)
        place.write_spec(Spec.model_validate(spec))
        return place

    def run(self, place: Place, stop: Stop | None = None) -> int:
        """The exit status of the job, run here."""
        return work(place, place.read_spec(), self.settings, stop or Stop(), 0.0)

    def command(self, place: Place, doom: str = "") -> list[str]:
        module = ["tests.distiller.trainer.doomed", doom] if doom else ["services.distiller.trainer"]
        return [sys.executable, "-m", *module, str(place.root), "--progress-seconds", "0"]

    def run_apart(self, place: Place, doom: str = "") -> int:
        """The exit status of the job, run in a process of its own."""
        return subprocess.run(
            self.command(place, doom), env=self.environment, cwd=ROOT, timeout=60, check=False
        ).returncode


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    made = Workshop(tmp_path)
    tiny.save(tmp_path / "models" / "tiny")
    (tmp_path / "data").mkdir()
    tiny.write(tmp_path / "data" / "c.jsonl", tiny.conversations(60))
    return made


def curve(place: Place) -> dict[int, dict[str, float]]:
    """The losses of each step; where one came twice, the later."""
    return {one.step: dict(one.losses) for one in progress(place) if one.losses}


def progress(place: Place) -> list[DistillProgress]:
    return [one for one, _ in place.read_progress()]


def weights(place: Place) -> bytes:
    return (place.student / "model.safetensors").read_bytes()
