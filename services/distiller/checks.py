"""What can be known of a job before it is taken: its models, data and device are there, and inside their roots."""

from __future__ import annotations

from collections.abc import Sequence

from ladr.config import DistillerSettings
from ladr.errors import InvalidRequest, NotFound
from services.common.sources import locate, under
from services.distiller.devices import eligible, enough
from services.distiller.spec import Spec

_SHOWN = 128  # characters of a path in an error
_NO_ROUTER = "this service knows no router: set distiller.router to the address of one"


def check(spec: Spec, settings: DistillerSettings, devices: Sequence[str]) -> None:
    """Raises: InvalidRequest: names the field and what to do."""
    _model(spec.teacher, "spec.teacher", settings)
    if spec.student.kind == "model" and spec.student.source:
        _model(spec.student.source, "spec.student.source", settings)
    if spec.evaluation.battles and spec.evaluation.judge == "likelihood" and spec.evaluation.judge_model:
        _model(spec.evaluation.judge_model, "spec.evaluation.judge_model", settings)
    if spec.data.path:
        _data(spec.data.path, settings)
    if spec.data.answers_from and settings.router is None:
        raise InvalidRequest(_NO_ROUTER, field="spec.data.answers_from")
    if spec.evaluation.battles and spec.evaluation.judge == "router" and settings.router is None:
        raise InvalidRequest(_NO_ROUTER, field="spec.evaluation.judge")
    training = spec.training
    if not eligible(training.device, devices):
        message = f"this service has no such device; it has {', '.join(devices)}"
        raise InvalidRequest(message, field="spec.training.device")
    if not enough(training.device, training.processes, devices):
        message = f"each process has a GPU, and there are {len(eligible(training.device, devices))} for this job"
        raise InvalidRequest(message, field="spec.training.processes")


def _model(source: str, field: str, settings: DistillerSettings) -> None:
    try:
        locate(source, settings.model_root, settings.allow_hub)
    except InvalidRequest:
        raise _outside(source, field, "distiller.model_root") from None
    except NotFound as error:
        message = (
            f"there is no directory or .gguf file {source[:_SHOWN]} under distiller.model_root: paths are relative to it"
            " (a hub name needs distiller.allow_hub: true)"
        )
        raise InvalidRequest(message if source else error.message, field=field) from None


def _data(source: str, settings: DistillerSettings) -> None:
    field = "spec.data.path"
    try:
        path = under(settings.data_root, source)
    except InvalidRequest:
        raise _outside(source, field, "distiller.data_root") from None
    if not path.is_file():
        message = f"there is no file {source[:_SHOWN]} under distiller.data_root: paths are relative to it"
        raise InvalidRequest(message, field=field)
    if not path.stat().st_size:
        raise InvalidRequest(f"{source[:_SHOWN]} is empty: give a file with a record in each line", field=field)


def _outside(source: str, field: str, setting: str) -> InvalidRequest:
    return InvalidRequest(f"{source[:_SHOWN]} is no path under {setting}: paths are relative to it", field=field)
