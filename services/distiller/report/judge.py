"""Judges say which of two answers is better. What they are is their own business: see `likelihood` and `router`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from services.distiller.report.answers import Answer
from services.distiller.report.questions import Question

WON, TIED, LOST = 1.0, 0.5, 0.0


@dataclass(frozen=True)
class Battle:
    """A question and two answers to it."""

    question: Question
    first: Answer
    second: Answer


@dataclass(frozen=True)
class Verdict:
    """What a judge says.

    Attributes:
        score: of the first answer: WON, TIED or LOST.
        swayed: the answers' places decided, so that it is a tie.
        unreadable: what the judge said names no winner, so that it is a tie.
    """

    score: float
    swayed: bool = False
    unreadable: bool = False

    def row(self) -> dict[str, Any]:
        return asdict(self)


class Judge(Protocol):
    """Compares answers."""

    def judge(self, battles: Sequence[Battle]) -> list[Verdict]:
        """A verdict on each, in order."""
