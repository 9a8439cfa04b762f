"""The student before its first step, as an earlier start wrote it: whole, or the job cannot go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.distiller.refused import Refused
from services.distiller.trainer.fingerprint import fingerprint

FILE = "student.json"


def write_notes(initial: Path, notes: Mapping[str, Any]) -> None:
    """Write what a student was made of beside it, last of all."""
    (initial / FILE).write_text(json.dumps({**notes, "student": fingerprint(str(initial))}))


def read_notes(initial: Path) -> dict[str, Any]:
    """What `write_notes` wrote. Raises: Refused: JOB_DAMAGED: this, or the student, is not as it was written."""
    try:
        notes: dict[str, Any] = json.loads((initial / FILE).read_bytes())
        whole = notes["student"] == fingerprint(str(initial))
    except (OSError, ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise Refused(
            "JOB_DAMAGED",
            "the job's initial/, the student before its first step, is not as it was written: begin a new job of the same spec",
        )
    return notes
