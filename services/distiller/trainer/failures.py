"""What stopped a trainer, as a reason for programs and a sentence for people."""

from __future__ import annotations

import errno

import torch

from ladr.errors import LadrError
from services.distiller.refused import Refused

_FULL = "out of memory: lower training.micro_sequences or data.sequence_tokens, or use more training.processes"


def explain(error: BaseException) -> tuple[str, str]:
    """Reason and message of a `DistillError`."""
    if isinstance(error, Refused):
        return error.reason, error.message
    if isinstance(error, LadrError):
        return error.reason, error.message
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _allocation(error):
        return "OUT_OF_MEMORY", f"the trainer ran {_FULL}"
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "(os error 28)" in str(
        error
    ):  # safetensors' own
        return "DISK_FULL", "the disk of distiller.state is full: make room, then resume the job"
    line = " ".join(str(error).split())[:300]
    return "TRAINER_FAILED", f"the trainer failed with {type(error).__name__}: {line}; its log says more"


def _allocation(error: BaseException) -> bool:
    """Whether torch could not have memory of the processor, for which it has no class of its own."""
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
