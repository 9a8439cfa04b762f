"""Which devices there are, and which job gets which: one job at a time on each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from services.distiller.machine import Job

CPU = "cpu"


def present(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The CUDA devices that a process started from here sees, by the driver's word; without any, the processor."""
    shown = environ.get("CUDA_VISIBLE_DEVICES")
    count = _gpus()
    if shown is not None:
        names = [name.strip() for name in shown.split(",")]
        named = next((at for at, name in enumerate(names) if name in ("", "-1")), len(names))
        count = min(count, named)
    return tuple(f"cuda:{index}" for index in range(count)) or (CPU,)


def eligible(device: str, devices: Sequence[str]) -> list[str]:
    """The devices of the service that a job may be put on. "": a GPU where there is one, else the processor."""
    gpus = [each for each in devices if each != CPU]
    if device == "cuda" or (not device and gpus):
        return gpus
    wanted = device or CPU
    return [wanted] if wanted in devices else []


def enough(device: str, processes: int, devices: Sequence[str]) -> bool:
    """Whether a job can run at all: on the processor with any number of processes, else with a GPU for each."""
    return len(eligible(device, devices)) >= _wanted(eligible(device, devices), processes)


def assign(waiting: Iterable[Job], free: Iterable[str], devices: Sequence[str]) -> list[tuple[Job, tuple[str, ...]]]:
    """Who begins now, and on what. `waiting` is in order; what an earlier job waits for is no later one's."""
    left = set(free)
    begun = []
    for job in waiting:
        fit = eligible(job.device, devices)
        want = _wanted(fit, job.processes)
        there = [device for device in fit if device in left]
        if len(there) >= want:
            begun.append((job, tuple(there[:want])))
            left -= set(there[:want])
        else:
            left -= set(there)
    return begun


def _wanted(fit: Sequence[str], processes: int) -> int:
    return 1 if fit == [CPU] else processes


def _gpus() -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0
    finally:
        pynvml.nvmlShutdown()
