"""Steps that nobody waits for any more."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from pathlib import Path

import pytest

from services.distiller.database import Database


async def test_a_step_that_fails_after_its_caller_has_left_is_no_error_of_the_loop(tmp_path: Path) -> None:
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
    base = Database(tmp_path / "a.db", "")
    await base.open(lambda _: None)
    begun, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work(_: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(begun.set)
        go.wait(10)
        raise KeyError

    caller = asyncio.create_task(base.step(work))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go.set()
    await base.close()  # after that step
    del caller
    gc.collect()
    assert said == []
