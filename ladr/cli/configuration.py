"""`ladr config`: what the settings are, and whether they are right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import yaml

from ladr import config as settings_of
from ladr.cli.flags import config_option
from ladr.cli.output import emit, output_option, write
from ladr.config import Settings, WorkerSettings


@click.group()
def config() -> None:
    """Show or check the settings."""


@config.command()
@config_option
@output_option
def show(config_file: Path | None, output: str) -> None:
    """Print every setting as it is in effect; secrets are masked."""
    shown = masked(settings_of.load(config_file))
    if output == "json":
        emit(shown)
    else:
        write(yaml.safe_dump(shown, sort_keys=False, allow_unicode=False))


@config.command()
@config_option
@output_option
def check(config_file: Path | None, output: str) -> None:
    """Say ok, or what is wrong and where (exit code 2)."""
    settings_of.load(config_file)
    read = config_file or os.environ.get("LADR_CONFIG") or settings_of.DEFAULT_FILE
    source = str(read) if Path(read).exists() else ""
    if output == "json":
        emit({"ok": True, "file": source or None})
    else:
        write(f"ok: {source or 'no file; defaults and environment'}\n")


def masked(settings: Settings) -> dict[str, Any]:
    """All settings as plain values; fleet entries too have their secrets masked."""
    shown: dict[str, Any] = settings_of.plain(settings)
    entries = [WorkerSettings.model_validate(entry) for entry in settings.up.fleet]
    shown["up"]["fleet"] = [settings_of.plain(entry.model_dump(exclude_unset=True)) for entry in entries]
    return shown
