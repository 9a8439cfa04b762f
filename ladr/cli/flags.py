"""Flags made from the settings: every key is one, and sets the environment variable of that key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic import BaseModel, SecretStr

from ladr import config
from ladr.config import ConfigError, Settings, env_name

F = TypeVar("F", bound=Callable[..., Any])
_PARAMETER = "set_"

config_option = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="Settings file; else $LADR_CONFIG, ladr.yaml.",
)


def setting_flags(section: str, prefix: str = "", hidden: bool = False) -> Callable[[F], F]:
    """Decorator: a flag for each key of a section, `--` + prefix + key, nested keys joined by dashes."""

    def decorate(command: F) -> F:
        for keys, kind, help_text in reversed(list(_keys((section,), type(getattr(Settings(), section))))):
            choices = [str(a) for a in get_args(kind)] if get_origin(kind) is Literal else None
            option = click.option(
                _flag(keys, prefix),
                _PARAMETER + "__".join(keys),
                type=click.Choice(choices) if choices else str,
                metavar=None if choices else "VALUE",
                hidden=hidden,
                help=help_text,
            )
            command = option(command)
        return command

    return decorate


def taken(given: dict[str, Any]) -> dict[str, str]:
    """Take the flags of `setting_flags` out of a command's arguments; gives the environment that they stand for."""
    names = [name for name in given if name.startswith(_PARAMETER)]
    found = {name: given.pop(name) for name in names}
    return {
        env_name(*name.removeprefix(_PARAMETER).split("__")): value
        for name, value in found.items()
        if value is not None
    }


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str], **prefixes: str) -> Settings:
    """Settings from the file, the environment and flags; the later wins. `prefixes`: of the flags of each section.

    Raises: ConfigError: names the flag where a flag is wrong.
    """
    try:
        return config.load(file, {**environ, **flags})
    except ConfigError as error:
        place, mark, rest = str(error).partition(": ")
        if place in flags and mark:
            keys = place.removeprefix(env_name()).lower().split("__")
            raise ConfigError(f"{_flag(tuple(keys), prefixes.get(keys[0], ''))}: {rest}") from None
        raise


def _flag(keys: tuple[str, ...], prefix: str) -> str:
    return "--" + prefix + "-".join(keys[1:]).replace("_", "-")


def _keys(above: tuple[str, ...], section: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys((*above, name), kind)
        else:
            yield (*above, name), kind, _help(field.description or "", field.get_default(), kind)


def _help(description: str, default: Any, kind: Any) -> str:
    if kind is SecretStr:
        return f"{description}. Others can see flags: the environment is better."
    shown = config.plain(default)
    return f"{description}." if shown in ("", [], {}) or isinstance(shown, list | dict) else f"{description} [{shown}]."
