"""Workers that come and go with the load, as the router advises."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextlib import suppress

from ladr.cli.keeper import ChildFailed, Keeper
from ladr.cli.misuse import Misuse
from ladr.cli.readiness import process_ready
from ladr.cli.supervisor import Supervisor
from ladr.client import Client
from ladr.errors import LadrError

_RETRY_S = 0.5


class Autoscale:
    """Follows the advice of the router at `address`. The newest worker leaves first; the `least` that were there stay.

    Args: another: makes the keeper of worker number n. say: told in one line of each change.
    """

    def __init__(
        self,
        address: str,
        least: int,
        supervisor: Supervisor,
        another: Callable[[int], Keeper],
        say: Callable[[str], None],
    ) -> None:
        self._address = address
        self._least = least
        self._supervisor = supervisor
        self._another = another
        self._say = say
        self._number = itertools.count(least)
        self._joined: list[Keeper] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow it until cancelled; those that joined end with the mesh."""
        try:
            while True:
                with suppress(LadrError):
                    await self._watch()
                await asyncio.sleep(_RETRY_S)
        finally:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self) -> None:
        wanted: dict[str, int] = {}
        async with Client(self._address) as client, client.watch_scale() as advices:
            async for advice in advices:
                wanted[advice.model] = advice.wanted_workers
                self._follow(max(wanted.values()))

    def _follow(self, wanted: int) -> None:
        while self._least + len(self._joined) < wanted:
            try:
                keeper = self._another(next(self._number))
            except (Misuse, OSError) as error:
                self._say(f"no further worker: {error}")
                return
            self._joined.append(keeper)
            self._say(f"{keeper.child.name} joins: the load asks for {wanted} workers")
            self._begin(self._keep(keeper))
        while self._joined and self._least + len(self._joined) > wanted:
            keeper = self._joined.pop()
            self._say(f"{keeper.child.name} leaves, when it has finished what it has: {wanted} workers will do")
            self._begin(self._supervisor.leave(keeper))

    async def _keep(self, keeper: Keeper) -> None:
        ready = asyncio.create_task(process_ready(keeper))
        try:
            await self._supervisor.join(keeper)
        except ChildFailed as failed:
            self._say(str(failed))
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            if keeper in self._joined:
                self._joined.remove(keeper)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
