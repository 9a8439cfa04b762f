"""A failure of who called, not of what was called."""

from __future__ import annotations

import click


class Misuse(click.ClickException):
    """What was asked for cannot be; the message is one line that says what to do instead. Exit code 2."""

    exit_code = 2
