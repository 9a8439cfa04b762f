"""Where settings come from: a YAML file, with the line of each key, and the environment, with the name of each variable."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ENV_PREFIX = "LADR_"

Loc = tuple[str | int, ...]


class ConfigError(Exception):
    """A setting is wrong. The message is one line that says which, where, and what to do."""


@dataclass(frozen=True)
class Source:
    """Values as read, and for each key's path the place that a person can look at."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Loc, str] = field(default_factory=dict)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`; mappings are merged, all else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def laid_over(base: Source, over: Source) -> Source:
    """Both sources as one; `over` wins."""
    return Source(merge(base.values, over.values), {**base.places, **over.places})


def place_of(loc: Loc, places: Mapping[Loc, str]) -> str:
    """Where the setting at `loc` is written: there, else what holds it, else the first thing under it; or ""."""
    above = [loc[:length] for length in range(len(loc), 0, -1)]
    under = sorted(path for path in places if path[: len(loc)] == loc)
    if loc not in places and under:
        return places[under[0]]
    return next((places[path] for path in above if path in places), "")


def env_name(*keys: str) -> str:
    """Name of the environment variable of a key: ("router", "port") → LADR_ROUTER__PORT."""
    return ENV_PREFIX + "__".join(key.upper() for key in keys)


def read_environment(environ: Mapping[str, str]) -> Source:
    """The keys that the environment sets. Only names with a double underscore are ours: LADR_SECTION__KEY.

    Raises: ConfigError: two variables that cannot both hold, or one that is neither text nor JSON.
    """
    source = Source()
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or "__" not in name:
            continue
        path = tuple(name[len(ENV_PREFIX) :].lower().split("__"))
        at = source.values
        for depth, parent in enumerate(path[:-1], start=1):
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise ConfigError(f"{name}: {env_name(*path[:depth])} sets the same; take one of them away")
        at[path[-1]] = _parsed(name, environ[name])
        source.places[path] = name
    return source


def read_file(path: Path) -> Source:
    """The keys of a YAML file.

    Raises: ConfigError: it cannot be read, is not YAML, is no mapping, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if values is None:
        return Source()
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: expected sections such as 'router:', found a {type(values).__name__}")
    places: dict[Loc, str] = {}
    _walk(node, (), path, places)
    return Source(values, places)


def _walk(node: yaml.Node | None, at: Loc, file: Path, places: dict[Loc, str]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path, place = (*at, str(key.value)), f"{file}:{key.start_mark.line + 1}"
            if path in places:
                raise ConfigError(f"{place}: '{key.value}' is given twice; the first is at {places[path]}")
            places[path] = place
            _walk(value, path, file, places)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            places[(*at, index)] = f"{file}:{value.start_mark.line + 1}"
            _walk(value, (*at, index), file, places)


def _parsed(name: str, text: str) -> Any:
    """JSON where it is a list or mapping, else the text (pydantic makes numbers of it). `[::1]:2` is an address."""
    if text.strip() == "null":
        raise ConfigError(f"{name}: null is no value; leave it out, and the default holds")
    if not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        if re.match(r"\s*\[[0-9A-Fa-f:.]+\]", text):
            return text
        why = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
    except RecursionError:
        why = "it is too deep"
    raise ConfigError(f"{name}: it begins as JSON does, and is none: {why}")
