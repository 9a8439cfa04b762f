"""The `ladr` command."""

from ladr.cli.app import main

__all__ = ["main"]
