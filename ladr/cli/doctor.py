"""`ladr doctor`: what this machine has, what is missing, and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ladr import config
from ladr.cli.checks import Check, every_check
from ladr.cli.flags import config_option
from ladr.cli.output import emit, line, output_option
from ladr.config import ConfigError, Settings

_STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@config_option
@output_option
def doctor(config_file: Path | None, output: str) -> int:
    """Check this machine, and say what to do.

    A line for each thing, with ok, warn or fail. Exit code 1 if anything fails.
    """
    try:
        settings, first = config.load(config_file), Check("settings", "ok", "valid")
    except ConfigError as error:
        settings, first = Settings(), Check("settings", "fail", str(error), "mend it; the rest is checked by defaults")
    found = [first, *every_check(settings)]
    failed = any(check.level == "fail" for check in found)
    if output == "json":
        emit({"ok": not failed, "checks": [vars(check) for check in found]})
    else:
        for check in found:
            _show(check)
    return 1 if failed else 0


def _show(check: Check) -> None:
    level = click.style(f"{check.level:<4}", fg=_STYLE[check.level]) if sys.stdout.isatty() else f"{check.level:<4}"
    click.echo(f"{level}  ", nl=False)
    line(f"{check.name}: {check.message}" + (f"; {check.remedy}" if check.remedy else ""))
