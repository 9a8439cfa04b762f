"""`ladr router`, `ladr worker`, `ladr metrics`, `ladr distiller`: one service in this process."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import click

from ladr.cli.flags import config_option, load, setting_flags, taken
from ladr.cli.misuse import Misuse

MESH = ("router", "worker", "metrics")
SERVICES = (*MESH, "distiller")

_WHAT = {
    "router": "Run the Router: takes requests and picks a worker for each.",
    "worker": "Run a Worker: one engine with its models.",
    "metrics": "Run the MetricsBus: carries the workers' reports to the routers.",
    "distiller": "Run the Distiller: makes smaller students of a teacher; see `ladr distill`.",
}


def service_argv(service: str, config_file: Path | None) -> list[str]:
    """The command line of a service's process.

    Raises: Misuse: the services are not installed here.
    """
    try:
        found = importlib.util.find_spec(f"services.{service}.__main__")
    except ImportError:
        found = None
    if found is None:
        raise Misuse(
            "the services are not installed here, only the client: run this from a checkout of LADR (make setup)"
        )
    # -P: not what lies in the current directory, but what was found just now.
    argv = [sys.executable, "-P", "-m", f"services.{service}"]
    return [*argv, "--config", str(config_file.absolute())] if config_file else argv


def service_command(service: str) -> click.Command:
    """The command that runs `service`, with a flag for each of its settings."""

    @click.command(service, help=_WHAT[service])
    @config_option
    @setting_flags(service)
    @setting_flags("telemetry", prefix="telemetry-")
    def run(config_file: Path | None, **given: Any) -> None:
        flags = taken(given)
        load(config_file, os.environ, flags, telemetry="telemetry-")
        argv = service_argv(service, config_file)
        os.execvpe(argv[0], argv, {**os.environ, **flags})  # noqa: S606  # becomes the service; no shell

    return run
