"""What lies between several instances of the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ladr.v1.fleet_pb2 import WorkerReport

Hear = Callable[[WorkerReport, float], None]
"""Takes a valid report that another instance heard, and the time on this process's monotonic clock [s] when it was heard."""


class Backend(Protocol):
    """Carries reports between the instances of the bus; losing it takes nothing from an instance but the others' workers."""

    @property
    def degraded(self) -> bool:
        """Whether reports do not pass just now."""

    def send(self, report: WorkerReport, heard_s: float) -> None:
        """Pass on a report that was heard here at `heard_s`. Never waits, never fails, holds one report a worker at most."""

    async def run(self, hear: Hear) -> None:
        """Carry until cancelled. What the others heard goes to `hear`; so may what was sent from here."""


class MemoryBackend:
    """For a bus that is alone: nothing beyond the process."""

    degraded = False

    def send(self, report: WorkerReport, heard_s: float) -> None:
        pass

    async def run(self, hear: Hear) -> None:
        await asyncio.Event().wait()
