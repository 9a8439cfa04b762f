"""One job in several processes on this machine: this one starts them, watches them, and does nothing else.

On several machines torchrun starts `python -m services.distiller.trainer` on each, with the job's directory on shared storage.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from services.distiller.place import DONE, FAILED, FULL, STOPPED, Place
from services.distiller.trainer.stop import Stop

log = logging.getLogger(__name__)
STORE = "LADR_RANKS_STORE"
"""File through which the processes find each other."""
_PARENT = "LADR_RANKS_PARENT"
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.2


def failure_of(place: Place, rank: int) -> Place:
    """Where a process says why it failed: each has a place of its own, so that none writes into another's words."""
    return Place(place.root / "ranks" / str(rank))


def end_with_parent() -> None:
    """In a process that `run` started: be killed when that one ends, however it does."""
    parent = os.environ.get(_PARENT)
    if parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):  # it ended before the line above
            sys.exit(FAILED)


def run(place: Place, count: int, command: Sequence[str], stop: Stop) -> int:
    """Start the processes and wait for all; the exit status of the job.

    If one fails, the others are killed: they would wait for it. Its failure is the job's. If one was ended by a signal, the
    status is 128 and its number: the job may be started again.
    """
    for rank in range(count):
        failure_of(place, rank).failure.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        common = {
            **os.environ,
            "WORLD_SIZE": str(count),
            STORE: str(Path(directory) / "store"),
            _PARENT: str(os.getpid()),
        }
        children: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(count):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                children.append(subprocess.Popen(command, env={**common, **own}))  # noqa: S603  # this program itself
            return _watch(place, children, stop)
        finally:
            for child in children:
                child.kill()
                child.wait()


def _watch(place: Place, children: list[subprocess.Popen[bytes]], stop: Stop) -> int:
    told = False
    while True:
        for rank, child in enumerate(children):
            if child.poll() not in (None, DONE, STOPPED):
                return _ended(place, rank, child.returncode)
        if all(child.poll() is not None for child in children):
            return STOPPED if any(child.returncode == STOPPED for child in children) else DONE
        if stop.requested and not told:
            told = True
            for child in children:
                child.send_signal(signal.SIGTERM)
        try:
            next(child for child in children if child.poll() is None).wait(_LOOK_S)
        except (subprocess.TimeoutExpired, StopIteration):
            continue


def _ended(place: Place, rank: int, status: int) -> int:
    """The job's status, where a process ended so; and why, unless a signal ended it."""
    if status == FULL:
        return FULL
    known = failure_of(place, rank).read_failure()
    if known is None and status < 0:
        log.warning("process %d was ended by signal %d; SIGKILL: most likely for want of memory", rank, -status)
        return 128 - status
    if known is not None:
        place.write_failure(known.reason, known.message)
    else:
        place.write_failure("TRAINER_FAILED", f"process {rank} ended with status {status}; the log says more")
    return FAILED
