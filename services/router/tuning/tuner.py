"""The tuner: a window's outcome comes in, the parameters for the next window go out. No clock, no network, no file.

Less is better. Guards: hard bounds, a limit to each step, hysteresis (a change must promise more than a margin), a roll-back
when the window after a change is worse than what the parameters before it would have been expected to give.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from random import Random
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ladr.routing.policy import Knob
from services.router.tuning.model import Array, Model

WINDOW = 160  # samples that count
LEAST = 8  # before anything is believed
GRID = 32  # values of a numeric knob that are considered, with two of them
MAX_GRID = 4096
STEP = 0.25  # of a knob's range, at most, in one change
FIRST_STEP = 0.15  # the same, while nothing is known
MARGIN = 0.02  # a change must promise so much less, as a share
WORSE = 0.15  # and is undone if it brings so much more than expected without it
_SHY = (
    0.25  # deviations over the mean that a change must be able to bear: it costs users, so curiosity alone is no reason
)
_MOST_LOAD = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One window: the parameters in effect, the load (share of the slots in use), and the objective's logarithm."""

    parameters: dict[str, float]
    load: float
    value: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Parameters for the next window, and why: "learning", "kept", "changed" or "rolled back".

    Attributes:
        expected: the objective expected of them, as a multiple of what is expected of those before; None while learning.
    """

    parameters: dict[str, float]
    kind: str
    expected: float | None = None


class Tuner:
    """For one policy. `applies` false is shadow mode: it decides, and knows that nobody follows."""

    def __init__(self, knobs: Sequence[Knob], parameters: Mapping[str, float], rng: Random, applies: bool) -> None:
        self._knobs = knobs
        self._rng = rng
        self._applies = applies
        self._samples: deque[Sample] = deque(maxlen=WINDOW)
        self._total = 0
        self._trusted = self._bounded(parameters)  # those before the change that is on trial
        self._trial = False
        self._model = Model(len(knobs) + 1)
        self.parameters = dict(self._trusted)

    def window(self, load: float, value: float) -> Decision:
        """Learn from a window under `parameters`, and decide about the next. `value`: the objective, over 0."""
        self._samples.append(Sample(dict(self.parameters), load, float(np.log(value))))
        self._total += 1
        if len(self._samples) < LEAST:
            return self._learn()
        self._fit()
        if self._trial:
            self._trial = False
            before, deviation = self._expect([self._trusted], load)
            if np.log(value) > before[0] + deviation[0] + np.log1p(WORSE):
                return self._go(self._trusted, "rolled back")
            self._trusted = dict(self.parameters)
        return self._seek(load)

    def state(self) -> dict[str, Any]:
        """What a later life needs to go on, as plain JSON."""
        return {
            "parameters": self.parameters,
            "trusted": self._trusted,
            "trial": self._trial,
            "total": self._total,
            "samples": [asdict(sample) for sample in self._samples],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Raises: ValueError, KeyError, TypeError: it is not such a state, or of other knobs."""
        names = {knob.name for knob in self._knobs}
        samples = [Sample(**sample) for sample in state["samples"]][-WINDOW:]
        for parameters in (state["parameters"], state["trusted"], *(sample.parameters for sample in samples)):
            if set(parameters) != names:
                raise ValueError("it is of other parameters")
        self.parameters = self._bounded(state["parameters"])
        self._trusted = self._bounded(state["trusted"])
        self._trial = bool(state["trial"])
        self._samples = deque(samples, maxlen=WINDOW)
        self._total = max(int(state["total"]), len(samples))

    def _learn(self) -> Decision:
        """Before anything is known: a small random step from the trusted parameters, every other window."""
        if self._total % 2 == 0 or not self._applies:
            return self._go(self._trusted, "learning")
        near = list(self._near(self._trusted, FIRST_STEP))
        return self._go(self._rng.choice(near), "learning")

    def _seek(self, load: float) -> Decision:
        here = self._trusted
        near = [here, *self._near(here, STEP)]
        means, deviations = self._expect(near, load)
        feared = means + _SHY * deviations
        best = int(np.argmin(feared))
        if not best or feared[best] > means[0] + np.log1p(-MARGIN):
            return self._go(here, "kept", 1.0)
        return self._go(near[best], "changed", float(np.exp(means[best] - means[0])))

    def _go(self, parameters: Mapping[str, float], kind: str, expected: float | None = None) -> Decision:
        decided = dict(parameters)
        if self._applies:
            self._trial = kind == "changed"
            self.parameters = decided
        return Decision(decided, kind, expected)

    def _fit(self) -> None:
        points = [self._point(sample.parameters, sample.load) for sample in self._samples]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound is fine
            self._model.fit(points, [sample.value for sample in self._samples], self._total)

    def _expect(self, candidates: Sequence[Mapping[str, float]], load: float) -> tuple[Array, Array]:
        return self._model.predict(np.asarray([self._point(one, load) for one in candidates]))

    def _point(self, parameters: Mapping[str, float], load: float) -> list[float]:
        return [*(knob.share(parameters[knob.name]) for knob in self._knobs), min(load, _MOST_LOAD) / _MOST_LOAD]

    def _near(self, here: Mapping[str, float], step: float) -> Iterator[dict[str, float]]:
        """A grid of parameters within a step of these and within their bounds."""
        count = min(GRID, int(MAX_GRID ** (1 / len(self._knobs))))
        axes = [
            [
                knob.value(share)
                for share in (n / (count - 1) for n in range(count))
                if abs(share - knob.share(here[knob.name])) <= step
            ]
            or [here[knob.name]]
            for knob in self._knobs
        ]
        names = [knob.name for knob in self._knobs]
        for values in product(*axes):
            yield dict(zip(names, values, strict=True))

    def _bounded(self, parameters: Mapping[str, float]) -> dict[str, float]:
        return {knob.name: min(max(float(parameters[knob.name]), knob.low), knob.high) for knob in self._knobs}
