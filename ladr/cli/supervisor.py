"""The care for a whole mesh: all its processes live until told to stop, and none is left behind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ladr.cli.keeper import Keeper

_STAGES = ("router", "worker", "metrics")  # the router first: what it has open is finished by workers that still run


class Supervisor:
    """Runs processes; more may join and some may leave while it does.

    Args: keepers: those that the mesh cannot do without.
    """

    def __init__(self, keepers: Sequence[Keeper]) -> None:
        self._keepers = keepers
        self._lives: dict[Keeper, asyncio.Task[None]] = {}
        self._told = asyncio.Event()
        self._broken: asyncio.Future[None] | None = None

    async def run(self, work: Callable[[], Awaitable[int]], stopping: Callable[[], None]) -> int:
        """Run the processes, and `work` beside them; stop all when it ends, when a signal comes, or when one cannot run.

        `stopping` is told of the first signal; a second kills at once. Gives the exit code: that of `work`, or 0 after a
        signal.

        Raises: ChildFailed, and what `work` raises.
        """
        with self._signals(stopping):
            broken = self._broken = asyncio.get_running_loop().create_future()
            for keeper in self._keepers:
                self._start(keeper).add_done_callback(self._ended)
            working = asyncio.ensure_future(work())
            signalled = asyncio.create_task(self._told.wait())
            try:
                await asyncio.wait({broken, working, signalled}, return_when=asyncio.FIRST_COMPLETED)
                if broken.done():
                    broken.result()
                return working.result() if working.done() else 0
            finally:
                self._told.set()
                signalled.cancel()
                working.cancel()
                broken.cancel()
                await self._stop()  # first: what is at work may wait for processes that joined
                await asyncio.wait({working, signalled})

    async def join(self, keeper: Keeper) -> None:
        """Run one more until it is told to `leave`. Raises: ChildFailed: it cannot run; the others go on."""
        try:
            await self._start(keeper)
        finally:
            self._lives.pop(keeper, None)

    async def leave(self, keeper: Keeper) -> None:
        """End one that joined; it finishes what it has."""
        life = self._lives.get(keeper)
        if life:
            await keeper.stop(life)

    def _start(self, keeper: Keeper) -> asyncio.Task[None]:
        life = self._lives[keeper] = asyncio.create_task(keeper.keep())
        return life

    def _ended(self, life: asyncio.Task[None]) -> None:
        if self._broken and not self._broken.done() and not life.cancelled() and (error := life.exception()):
            self._broken.set_exception(error)

    async def _stop(self) -> None:
        lives = dict(self._lives)
        for keeper in lives:
            keeper.retire()
        for stage in _STAGES:
            group = [(keeper, life) for keeper, life in lives.items() if keeper.child.service == stage]
            await asyncio.gather(*(keeper.stop(life) for keeper, life in group))
        await asyncio.gather(*lives.values(), return_exceptions=True)  # what they raised is known, or came too late

    @contextmanager
    def _signals(self, stopping: Callable[[], None]) -> Iterator[None]:
        """Once told to stop and calling `stopping` at the first signal; from then on a signal kills everything."""

        def on_signal() -> None:
            if self._told.is_set():
                for keeper in self._lives:
                    keeper.retire()
                    keeper.send(signal.SIGKILL)
                return
            self._told.set()
            with suppress(OSError):  # the terminal may be gone
                stopping()

        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, on_signal)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
