"""A form that is measured in a process of its own, so that its memory and its threads are its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.processes import ROOT


def apart(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """The JSON in the last line that `python -m MODULE ARGUMENT…` prints. Raises: RuntimeError: it failed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
