"""The memory that this process holds."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_PAGE = os.sysconf("SC_PAGE_SIZE")


def held_bytes(device: str) -> int:
    """On a GPU what torch has reserved there; else the resident memory."""
    if device.startswith("cuda"):
        return int(torch.cuda.memory_reserved(device))
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
