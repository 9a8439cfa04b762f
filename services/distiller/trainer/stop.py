"""A trainer that is told to stop finishes its step and writes a checkpoint first."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from types import FrameType


class Stopped(Exception):
    """The job was stopped between two pieces of work; what it has done is written down."""


@dataclass(eq=False)
class Stop:
    """Whether SIGTERM or SIGINT came."""

    requested: bool = False

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._hear)
        signal.signal(signal.SIGINT, self._hear)

    def check(self) -> None:
        """Raises: Stopped."""
        if self.requested:
            raise Stopped

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
