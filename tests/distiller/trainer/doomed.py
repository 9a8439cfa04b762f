"""A trainer that comes to harm at a certain point: `python -m tests.distiller.trainer.doomed DOOM JOB …`.

kill-step-N        SIGKILL right after step N
kill-checkpoint-N  SIGKILL in the middle of writing the checkpoint of step N
stop-step-N        SIGTERM after step N, in the first process alone
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from services.distiller.trainer import __main__ as trainer
from services.distiller.trainer import checkpoint
from services.distiller.trainer.meter import Meter


def doom(what: str, where: str, at: int) -> None:
    step, save_file, save = Meter.step, checkpoint.save_file, checkpoint.save
    number = signal.SIGTERM if what == "stop" else signal.SIGKILL
    writing = [0]

    def meter_step(self: Meter, done: int, *rest: Any) -> None:
        step(self, done, *rest)
        if where == "step" and done == at and os.environ.get("RANK", "0") == "0":
            os.kill(os.getpid(), number)

    def checkpoint_save(root: Any, progress: Any, *rest: Any) -> None:
        writing[0] = progress.step
        save(root, progress, *rest)

    def write_file(tensors: Any, path: Any) -> None:
        save_file(tensors, path)
        if where == "checkpoint" and writing[0] == at and path.name == "optimizer.safetensors":
            os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), number)

    Meter.step, checkpoint.save, checkpoint.save_file = meter_step, checkpoint_save, write_file  # type: ignore[method-assign]


if __name__ == "__main__":
    what, where, at = sys.argv.pop(1).split("-")
    doom(what, where, int(at))
    sys.exit(trainer.main())
