"""GPU memory through the real NVML binding, over a driver library of our own: there is no GPU where this runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DRIVER = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
  long index = (long)handle - 1;
  if (index == 1) return 3; /* NVML_ERROR_NOT_SUPPORTED */
  memory->total = 80ull << 30; memory->used = (index + 1ull) << 30; memory->free = memory->total - memory->used;
  return 0;
}
const char *nvmlErrorString(int code) { return "error"; }
"""
READ = """
from services.worker.gpus import Gpus
for gpu in Gpus().memory(): print(gpu.index, gpu.used_bytes >> 30, gpu.total_bytes >> 30)
"""


def read(library_path: str) -> list[str]:
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path}
    return subprocess.run(
        [sys.executable, "-c", READ], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_each_gpu_that_the_driver_answers_for_is_told_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "nvml.c").write_text(DRIVER)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", "-o", tmp_path / "libnvidia-ml.so.1", tmp_path / "nvml.c"], check=True
    )
    assert read(str(tmp_path)) == ["0 1 80", "2 3 80"]  # GPU 1 is not supported: absent, not 0


def test_without_a_driver_there_are_no_gpus(tmp_path: Path) -> None:
    assert read(str(tmp_path)) == []
