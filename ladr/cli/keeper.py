"""Keeps one process of the mesh alive: starts it, starts it again when it crashes, ends it when told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from ladr.cli.backoff import Backoff
from ladr.cli.plan import Child

MISUSE = 2
_TRIES = 3  # crashes before it was ever ready
_TAIL_BYTES = 16_384
_TAIL_LINES = 10
_LEASH = str(Path(__file__).with_name("leash.py"))


class ChildFailed(Exception):
    """A process cannot run. `code` is the exit code to end with; the message is one line, `tail` the end of its log."""

    def __init__(self, message: str, code: int, tail: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.tail = tail


class Keeper:
    """One child in care; `keep` runs until `stop`, or raises ChildFailed.

    Args:
        argv: its command line.
        log: file that takes its stdout and stderr, of all its lives; None: they go where ours go.
        say: told in one line of each crash.
    """

    def __init__(self, child: Child, argv: Sequence[str], log: Path | None, say: Callable[[str], None]) -> None:
        self.child = child
        self.log = log
        self.was_ready = False
        self._argv = argv
        self._say = say
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._began_at = 0  # where in the log this life begins

    @property
    def pid(self) -> int:
        """Of its present or last life; 0 before the first."""
        return self._process.pid if self._process else 0

    async def keep(self) -> None:
        """Run the child until `retire`. Raises: ChildFailed: misuse, or it crashed thrice before it was ready."""
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        crashes = 0
        while not self._stopping.is_set():
            began_s = loop.time()
            code = await self._live()
            if self._stopping.is_set():
                return
            crashes += 1
            name = self.child.name
            if not self.was_ready and code == MISUSE:
                raise ChildFailed((self._lines() or [f"{name} cannot start"])[-1], MISUSE)
            if not self.was_ready and crashes >= _TRIES:
                raise ChildFailed(f"{name} {_ended(code)} {crashes} times before it was ready", 1, self._lines())
            wait_s = backoff.after(loop.time() - began_s)
            where = f" (its log: {self.log})" if self.log else ""
            self._say(f"{name} {_ended(code)}; starting it again in {wait_s:g} s{where}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)

    def retire(self) -> None:
        """From now on it is not started again."""
        self._stopping.set()

    async def stop(self, task: asyncio.Task[None]) -> None:
        """End it: SIGTERM, and after its grace SIGKILL. `task` is the one that runs `keep`."""
        self.retire()
        self.send(signal.SIGTERM)
        done, _ = await asyncio.wait({task}, timeout=self.child.grace_s + 2)
        if not done:
            self._say(f"{self.child.name} did not end within its grace; killed")
            self.send(signal.SIGKILL)
            await asyncio.wait({task})

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _live(self) -> int:
        """One life of the process; gives its exit code."""
        with self.log.open("ab") if self.log else nullcontext() as log:
            self._began_at = log.tell() if log else 0
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-IS", _LEASH, str(os.getpid())),
                *self._argv,
                env={**os.environ, **self.child.environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we end the children in their order
            )
        if self._stopping.is_set():
            self.send(signal.SIGTERM)
        return await self._process.wait()

    def _lines(self) -> list[str]:
        """The last lines of this life's log."""
        if not self.log:
            return []
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._began_at, size - _TAIL_BYTES))
            return log.read().decode(errors="replace").strip().splitlines()[-_TAIL_LINES:]


def _ended(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
