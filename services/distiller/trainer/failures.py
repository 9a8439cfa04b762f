"""What stopped a trainer, as a reason for programs and a sentence for people."""

from __future__ import annotations

from ladr.errors import LadrError
from services.common.weights import out_of_memory
from services.distiller.place import DISK_FULL, disk_full
from services.distiller.refused import Refused

_FULL = "out of memory: lower training.micro_sequences or data.sequence_tokens, or use more training.processes"


def explain(error: BaseException) -> tuple[str, str]:
    """Reason and message of a `DistillError`."""
    if isinstance(error, Refused):
        return error.reason, error.message
    if isinstance(error, LadrError):
        return error.reason, error.message
    if out_of_memory(error):
        return "OUT_OF_MEMORY", f"the trainer ran {_FULL}"
    if disk_full(error):
        return DISK_FULL
    line = " ".join(str(error).split())[:300]
    return "TRAINER_FAILED", f"the trainer failed with {type(error).__name__}: {line}; its log says more"
