"""The care for a whole mesh: all its processes live until told to stop, and none is left behind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ladr.cli.keeper import Keeper

_STAGES = ("router", "worker", "metrics")  # the router first: what it has open is finished by workers that still run


async def supervise(keepers: Sequence[Keeper], work: Callable[[], Awaitable[int]], stopping: Callable[[], None]) -> int:
    """Run the processes, and `work` beside them; stop all when it ends, when a signal comes, or when one cannot run.

    `stopping` is told of the first signal; a second kills at once. Gives the exit code: that of `work`, or 0 after a signal.

    Raises: ChildFailed, and what `work` raises.
    """
    told = asyncio.Event()
    with _signals(told, keepers, stopping):
        lives = {keeper: asyncio.create_task(keeper.keep()) for keeper in keepers}
        working = asyncio.ensure_future(work())
        signalled = asyncio.create_task(told.wait())
        try:
            await asyncio.wait({*lives.values(), working, signalled}, return_when=asyncio.FIRST_COMPLETED)
            for life in lives.values():
                if life.done():
                    life.result()
            return working.result() if working.done() else 0
        finally:
            told.set()
            signalled.cancel()
            working.cancel()
            await asyncio.wait({working, signalled})
            await _stop(lives)


async def _stop(lives: dict[Keeper, asyncio.Task[None]]) -> None:
    for keeper in lives:
        keeper.retire()
    for stage in _STAGES:
        group = [(keeper, life) for keeper, life in lives.items() if keeper.child.service == stage]
        await asyncio.gather(*(keeper.stop(life) for keeper, life in group))
    await asyncio.gather(*lives.values(), return_exceptions=True)  # what they raised is known, or came too late


@contextmanager
def _signals(told: asyncio.Event, keepers: Sequence[Keeper], stopping: Callable[[], None]) -> Iterator[None]:
    """Sets `told` and calls `stopping` at the first signal; once it is set, a signal kills everything."""

    def on_signal() -> None:
        if told.is_set():
            for keeper in keepers:
                keeper.retire()
                keeper.send(signal.SIGKILL)
            return
        told.set()
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
