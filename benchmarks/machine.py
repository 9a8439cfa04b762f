"""How much processor time a process has had."""

from __future__ import annotations

import time
from pathlib import Path

_CPU_CLOCK = 2  # Linux: with the complement of a process id above it, the id of that process's processor-time clock


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has had, all threads, in user and system mode."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


def family(pid: int) -> list[int]:
    """A process and those that it has started and that run."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
