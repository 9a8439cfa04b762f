"""The machine that a benchmark ran on, and how much processor time a process has had."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

_CPU_CLOCK = 2  # Linux: with the complement of a process id above it, the id of that process's processor-time clock


def machine() -> dict[str, Any]:
    """Cores, model, versions, and how busy it was (the mean number of running processes in the last minute)."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "load": round(os.getloadavg()[0], 2),
    }


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has had, all threads, in user and system mode."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
