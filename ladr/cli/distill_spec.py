"""A distillation's spec from a file, flags and `--set key=value`; a wrong key is named with the one that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from google.protobuf.descriptor import FieldDescriptor

from ladr.cli.misuse import Misuse
from ladr.distill_calls import distill_spec
from ladr.v1.distiller_pb2 import DistillSpec

_ROOT: Any = DistillSpec.DESCRIPTOR


def read_spec(text: str, flags: Mapping[str, Any], sets: Sequence[str]) -> DistillSpec:
    """Flags win over the file, and `--set` over both.

    Args:
        text: YAML or JSON by the contract's names, or "". flags: dotted key → value; None: not given.
        sets: KEY=VALUE, KEY dotted.
    Raises: Misuse, InvalidRequest: one line that says what is wrong.
    """
    values = _file(text)
    for key, value in flags.items():
        if value is not None:
            _put(values, key, value)
    for each in sets:
        key, mark, given = each.partition("=")
        if not mark:
            raise Misuse(f"--set {each}: give KEY=VALUE, such as training.steps=100")
        _put(values, key.strip(), _value(key.strip(), given))
    return distill_spec(values)


def _file(text: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Misuse(f"the spec is neither YAML nor JSON: {error}") from None
    _check(values, _ROOT, "")
    found: dict[str, Any] = values
    return found


def _check(values: Any, message: Any, above: str) -> None:
    if not isinstance(values, dict):
        raise Misuse(f"{above.rstrip('.') or 'the spec'}: give a mapping with {', '.join(message.fields_by_name)}")
    for key, value in values.items():
        field = _field(message, str(key), above)
        if field.message_type is not None:
            _check(value, field.message_type, f"{above}{key}.")


def _field(message: Any, key: str, above: str) -> Any:
    if key in message.fields_by_name:
        return message.fields_by_name[key]
    near = difflib.get_close_matches(key, message.fields_by_name, n=1, cutoff=0.5)
    hint = f"did you mean '{above}{near[0]}'?" if near else f"known here: {', '.join(message.fields_by_name)}"
    raise Misuse(f"a spec has no '{above}{key}'; {hint}")


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    field = _find(key)
    if field.message_type is not None:
        _check(value, field.message_type, f"{key}.")
    *groups, last = key.split(".")
    for group in groups:
        values = values.setdefault(group, {})
    values[last] = value


def _find(key: str) -> Any:
    """The field that a dotted key names."""
    message, above, field = _ROOT, "", None
    for part in key.split("."):
        if message is None:
            raise Misuse(f"'{above.rstrip('.')}' has nothing under it")
        field = _field(message, part, above)
        message, above = field.message_type, f"{above}{part}."
    return field


def _value(key: str, text: str) -> Any:
    """A value as its field takes it: text as it is, all else as YAML; a list also with commas between."""
    field = _find(key)
    if field.is_repeated and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    if field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated:
        return text
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise Misuse(f"--set {key}: {text!r} is no value") from None
