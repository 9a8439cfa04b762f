"""Two workers for one request, until one of them says something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ladr.routing.attempt import Attempt
from ladr.routing.wire import Event, event_of


async def race(
    first: Attempt, after_s: float, second: Callable[[], Attempt | None]
) -> tuple[list[bytes], Attempt, bool]:
    """Ask a second worker if the first says nothing for `after_s` seconds, and take the one that is first to a token.

    Args: second: makes the other attempt, or None if there shall be none.
    Returns: the winner's messages up to its first token, the winner, and whether a second was asked. Who lost is closed.
    Raises: LadrError: all failed.
    """
    runners = {asyncio.ensure_future(_to_first_token(first)): first}
    try:
        done, _ = await asyncio.wait(runners, timeout=after_s)
        hedged = not done and (other := second()) is not None
        if hedged and other is not None:
            runners[asyncio.ensure_future(_to_first_token(other))] = other
        while True:
            done, running = await asyncio.wait(runners, return_when=asyncio.FIRST_COMPLETED)
            winners = [one for one in done if one.exception() is None]
            if winners or not running:
                break
            for one in done:
                del runners[one]
        one = winners[0] if winners else next(iter(done))
        winner = runners[one]
        for loser in runners.values():
            if loser is not winner:
                loser.close()
        return one.result(), winner, hedged
    finally:
        for one in runners:
            one.cancel()
        await asyncio.gather(*runners, return_exceptions=True)


async def _to_first_token(attempt: Attempt) -> list[bytes]:
    """Its messages up to the first token."""
    messages = []
    async for message in attempt:
        messages.append(message)
        if event_of(message) in (Event.DELTA, Event.FINISHED):
            break
    return messages
