"""The machine that a benchmark ran on, and the memory of a process on it."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Cores, model, versions, and how busy it was (the mean number of running processes in the last minute)."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu_model(),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "load": round(os.getloadavg()[0], 2),
    }


def memory_bytes(pid: int) -> tuple[int, int] | None:
    """Resident memory of a process in bytes, now and at its peak; None where the system does not tell (not Linux)."""
    with suppress(OSError, KeyError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        values = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        now, peak = (int(values[name][0]) << 10 for name in ("VmRSS", "VmHWM"))
        return now, peak
    return None


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
