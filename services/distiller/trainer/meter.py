"""How far the job is, as lines of progress.jsonl: at the beginning of a phase, then about once a second, later less often."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta

from ladr.v1.distiller_pb2 import DistillPhase, DistillProgress
from services.distiller.place import START, Place

_SHARE, _SELDOM_S = 1000, 30.0  # a line each thousandth of the phase so far, from `every_s` up to this


class Meter:
    """Gathers steps and writes what they come to.

    Args:
        place: where to write; None: nothing is written.
        every_s: least time between two lines of one phase, at first; the last step of a phase is always written.
        memory_bytes: the memory that the trainer holds.
        clock: seconds.
    """

    def __init__(
        self,
        place: Place | None,
        memory_bytes: Callable[[], int],
        every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._memory_bytes = memory_bytes
        self._every_s = every_s
        self._clock = clock
        self._start = int(os.environ.get(START, 0)) or 1 + _last_start(place)
        self._phase = DistillPhase.DISTILL_PHASE_UNSPECIFIED
        self._tokens = 0
        self.begin(DistillPhase.DISTILL_PHASE_PREPARE)

    def begin(self, phase: DistillPhase, total_steps: int = 0, step: int = 0, tokens: int | None = None) -> None:
        """A phase begins, or goes on from a step. `tokens`: trained on by then; None: as many as before."""
        self._phase, self._total_steps = phase, total_steps
        self._tokens = self._tokens if tokens is None else tokens
        self._began_s, self._first_step = self._clock(), step
        self._forget()
        self._write(step, 0.0, {})

    def step(self, step: int, tokens: int, losses: Mapping[str, float], figures: Mapping[str, float]) -> None:
        """So many steps of the phase are done; `tokens` and `losses` are of the last one."""
        self._tokens += tokens if self._phase == DistillPhase.DISTILL_PHASE_TRAIN else 0
        self._tokens_since += tokens
        self._steps_since += 1
        self._losses.update(losses)
        now_s = self._clock()
        passed_s, share_s = now_s - self._wrote_s, (now_s - self._began_s) / _SHARE
        if passed_s >= max(self._every_s, min(share_s, _SELDOM_S)) or step == self._total_steps:
            self._write(step, passed_s, figures)
            self._forget()

    def _forget(self) -> None:
        self._wrote_s = self._clock()
        self._tokens_since = self._steps_since = 0
        self._losses: Counter[str] = Counter()

    def _write(self, step: int, passed_s: float, figures: Mapping[str, float]) -> None:
        if self._place is None:
            return
        progress = DistillProgress(
            phase=self._phase,
            step=step,
            total_steps=self._total_steps,
            tokens=self._tokens,
            losses={name: loss / self._steps_since for name, loss in self._losses.items()},
            figures=figures,
            tokens_per_second=self._tokens_since / passed_s if passed_s else 0.0,
            memory_bytes=self._memory_bytes(),
            start=self._start,
        )
        progress.time.GetCurrentTime()
        done = step - self._first_step
        if done and self._total_steps:
            each_s = (self._clock() - self._began_s) / done
            progress.remaining.FromTimedelta(timedelta(seconds=math.ceil(each_s * (self._total_steps - step))))
        self._place.add_progress(progress)


def _last_start(place: Place | None) -> int:
    last = 0
    if place is not None:
        for progress, _ in place.read_progress():
            last = progress.start
    return last
