"""The process of one trainer: it ends with this one, is asked before it is killed, and nothing of it is left behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import ladr
from services.distiller.log import keep_small
from services.distiller.place import Place

_LEASH = str(Path(ladr.__file__).parent / "cli" / "leash.py")
_LOOK_S = 1.0  # between two looks at the size of its log
_TRY_S = 0.05  # between two tries to take a place from an old trainer
_KILLED_S = 10.0  # in which a killed process is gone


class StillThere(OSError):
    """A trainer of an earlier service is still in the job's directory, and cannot be ended."""


class Child:
    """One trainer; `run` once.

    Args:
        argv: its command line, without the job's directory. environ: what it has beside our environment.
        grace_s: how long it may take to end when it is asked to.

    Attributes:
        told: it was asked to end.
    """

    def __init__(self, argv: Sequence[str], place: Place, environ: Mapping[str, str], grace_s: float) -> None:
        self._argv = [*argv, str(place.root.absolute())]
        self._place = place
        self._environ = environ
        self._grace_s = grace_s
        self._asked = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self.told = False

    async def run(self) -> int:
        """Run it to its end; gives its exit code, or minus the signal that ended it.

        Raises: OSError: it cannot be started.
        """
        process = self._process = await self._start()
        if process is None:
            return -signal.SIGTERM
        ended = asyncio.create_task(process.wait())
        asked = asyncio.create_task(self._asked.wait())
        try:
            while not ended.done() and not self.told:
                await asyncio.wait({ended, asked}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.to_thread(keep_small, self._place.log)
            if not ended.done():
                with suppress(ProcessLookupError):
                    process.terminate()
                await asyncio.wait({ended}, timeout=self._grace_s)
        finally:
            asked.cancel()
            self._kill_group()  # its own processes too, where it left some
            await asyncio.shield(ended)
        return process.returncode or 0

    def stop(self) -> None:
        """Ask it to write a checkpoint and end; after its grace it is killed."""
        self.told = True
        self._asked.set()

    def kill(self) -> None:
        """End it now, with every process that it started."""
        self.stop()
        self._kill_group()

    def _kill_group(self) -> None:
        if self._process:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _start(self) -> asyncio.subprocess.Process | None:
        """None: it was asked to end before it was there."""
        lock = os.open(self._place.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not await self._take(lock):
                return None
            with self._place.log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-IS", _LEASH, str(os.getpid())),
                    *self._argv,
                    env={**os.environ, **self._environ},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[lock],  # it holds the place for as long as it lives, also without us
                )
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(process.pid).encode(), 0)
            return process
        finally:
            os.close(lock)

    async def _take(self, lock: int) -> bool:
        """Take the job's directory; an old trainer, whose service was killed, has its grace to leave it. False: not wanted now.

        Raises: StillThere.
        """
        until_s = asyncio.get_running_loop().time() + self._grace_s
        killed = False
        while not self.told:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                pass
            if asyncio.get_running_loop().time() > until_s:
                if killed:
                    raise StillThere("an old trainer of this job cannot be ended; end it, then resume the job")
                self._kill_old(os.pread(lock, 32, 0))
                killed, until_s = True, until_s + _KILLED_S
            await asyncio.sleep(_TRY_S)
        return False

    def _kill_old(self, pid: bytes) -> None:
        with suppress(OSError, ValueError):
            number = int(pid)
            if os.fsencode(self._argv[-1]) in Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0"):
                os.killpg(number, signal.SIGKILL)
