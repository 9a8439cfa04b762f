"""The memory that this process holds."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

_PAGE = os.sysconf("SC_PAGE_SIZE")
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own


def held_bytes(device: str) -> int:
    """On a GPU what torch has reserved there; else the resident memory."""
    if device.startswith("cuda"):
        return int(torch.cuda.memory_reserved(device))
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def give_back() -> None:
    """Let the system have what is free: tensors of many sizes leave holes, after some steps a quarter of all."""
    if _trim is not None:
        _trim(0)
