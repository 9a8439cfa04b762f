"""GPU memory as the driver tells it, through NVML. A GPU that does not answer is left out: absent, never 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of one GPU in bytes; `used` is by all processes."""

    index: int
    used_bytes: int
    total_bytes: int


class Gpus:
    """The machine's GPUs; empty without a driver."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._count: int = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError:
            self._count = 0

    def memory(self) -> list[GpuMemory]:
        """Memory of each GPU that answers. Callable from any thread."""
        found = []
        for index in range(self._count):
            try:
                info = self._nvml.nvmlDeviceGetMemoryInfo(self._nvml.nvmlDeviceGetHandleByIndex(index))
            except self._nvml.NVMLError:  # not supported (MIG, some virtual GPUs), or fallen off the bus
                continue
            found.append(GpuMemory(index, int(info.used), int(info.total)))
        return found
