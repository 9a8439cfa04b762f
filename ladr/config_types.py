"""Types of settings that say their unit: "200ms", "64MiB", "host:port"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SHIFTS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}


def _duration(value: object) -> object:
    """A duration as text ("200ms", "1.5s", "5m") or as a number of seconds."""
    if isinstance(value, timedelta):
        return value
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(us|ms|s|m|h)?\s*", str(value))
    if isinstance(value, bool) or not match:
        raise ValueError("give a duration such as 200ms or 1.5s")
    try:
        return timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"])
    except OverflowError:
        raise ValueError("that is longer than a duration can be") from None


def _bytes(value: object) -> object:
    """A size as text ("16MiB", "4KiB") or as a number of bytes."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+)\s*(B|KiB|MiB|GiB)?\s*", value)
        if not match:
            raise ValueError("give a size such as 16MiB or 4096")
        return int(match[1]) << _SHIFTS[match[2] or "B"]
    return value


def _address(value: object) -> object:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/]+):(\d{1,5})", value) if isinstance(value, str) else None
    if not match or int(match[2]) > 65535:
        raise ValueError("give host:port, such as 127.0.0.1:50052")
    return value


def _list(value: object) -> object:
    """A list, or its members with commas between (as the environment gives them)."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _pairs(value: object) -> object:
    """A mapping, or a=b with commas between (as the environment gives it)."""
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(name.strip() and mark for name, mark, _ in pairs):
            raise ValueError("give alias=name, with commas between")
        return {_model_name(name): _model_name(target) for name, _, target in pairs}
    return value


def _models(value: object) -> object:
    """Models in full, or as name=source (or name alone) with commas between."""
    items = _list(value)
    if not isinstance(items, list):
        return items
    return [_model(item) if isinstance(item, str) else item for item in items]


def _model(text: str) -> dict[str, str]:
    name, _, source = text.partition("=")
    return {"name": _model_name(name), "source": source.strip()}


def _model_name(text: str) -> str:
    """A model's name in a short form, where a slip of the pen could pass for one; in full it may be anything."""
    if not re.fullmatch(r"[A-Za-z0-9._:/-]+", text.strip()):
        raise ValueError(f"{text.strip()!r} is no model's name: letters, digits and . _ - : / only")
    return text.strip()


def distinct(names: Iterable[str], what: str) -> None:
    """Raises: ValueError: a name is there twice."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"two {what} are named {twice[0]!r}; give each a name of its own")


def _aliases(value: dict[str, str]) -> dict[str, str]:
    for alias, target in value.items():
        if target in value:
            raise ValueError(f"{alias!r} stands for {target!r}, which is an alias too; give the name of a served model")
    return value


class _RedisUrl(SecretStr):
    """Where Redis is. It is shown without its password."""

    def _display(self) -> str:
        url = re.sub(r"([?&]password=)[^&]*", r"\1***", self.get_secret_value())
        scheme, slashes, rest = url.partition("://")
        login, at, where = rest.rpartition("@")
        user, colon, _ = login.partition(":")
        shown = f"{user}:***" if colon else "***"
        return f"{scheme}{slashes}{shown}@{where}" if at else url


def _redis_url(value: SecretStr) -> _RedisUrl:
    if not value.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("give redis://host:6379/0, rediss://… or unix://…")
    return _RedisUrl(value.get_secret_value())


def between(least: timedelta, most: timedelta) -> AfterValidator:
    """A duration's bounds, both allowed."""

    def check(value: timedelta) -> timedelta:
        if not least <= value <= most:
            raise ValueError(f"give {duration_text(least)} to {duration_text(most)}")
        return value

    return AfterValidator(check)


def _over_zero(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("give more than 0s")
    return value


def duration_text(value: timedelta) -> str:
    """timedelta(milliseconds=200) → "200ms": the largest unit that leaves a whole number."""
    micros = value // timedelta(microseconds=1)
    for unit, scale in (("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)):
        if micros and micros % scale == 0:
            return f"{micros // scale}{unit}"
    return f"{micros}us" if micros else "0s"


AnyDuration = Annotated[timedelta, BeforeValidator(_duration)]
Duration = Annotated[AnyDuration, AfterValidator(_over_zero)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
Address = Annotated[str, BeforeValidator(_address)]
Addresses = Annotated[tuple[Address, ...], BeforeValidator(_list), Field(min_length=1)]
Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]
Aliases = Annotated[Pairs, AfterValidator(_aliases)]
AsModels = BeforeValidator(_models)
AsNames = BeforeValidator(_list)
RedisUrl = Annotated[SecretStr, AfterValidator(_redis_url)]
