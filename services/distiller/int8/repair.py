"""A model is quantised, and repaired step by step until its KL is at the goal, or nothing is left to do."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.common.int8.form import size
from services.common.int8.notes import Kind, Step
from services.distiller.int8.known import Known
from services.distiller.int8.lora import lora
from services.distiller.int8.quantised import Quantised
from services.distiller.int8.sensitive import keep_sensitive
from services.distiller.int8.smooth import smoothed
from services.distiller.objective.batch import Batch
from services.distiller.spec import Int8

SMOOTH_TOKENS = 4096
"""Tokens that activations are looked at on."""
RANKED_TOKENS = 512
"""Scored tokens of the probe that kinds of layer, and the layers of a kind, are compared on."""
MARGIN = 0.85
"""The probe has 2,048 tokens, whose mean is uncertain by some 6 %, and choices are made to suit it: where it decides that a
repair has done enough, its KL is at most so much of the goal."""


@dataclass(frozen=True)
class Material:
    """What there is to fit and measure on: a choice is made on `probe`, adapters learn from `fit`, and nothing is fitted to
    `measured`."""

    probe: Sequence[Batch]
    fit: Sequence[Batch]
    measured: Sequence[Batch]


@dataclass
class Told:
    """Where the progress goes: `check` is called between measurements and may raise, `step` after each step with its KL,
    `train` in a longer one after each piece of work (its KL, its tokens)."""

    check: Callable[[], None] = lambda: None
    step: Callable[[Step], None] = lambda step: None
    train: Callable[[float, int], None] = lambda kl, tokens: None


@dataclass
class Result:
    """The model in 8 bits, and the steps to it; the KL in them is measured apart."""

    quantised: Quantised
    measured: Known
    steps: list[Step] = field(default_factory=list)

    @property
    def kl(self) -> float:
        return self.steps[-1].kl


def quantise(
    reference: Any,
    kind: Kind,
    spec: Int8,
    material: Material,
    vocabulary: int,
    most_tokens: int,
    told: Told,
) -> Result:
    """Quantise a copy of a model (in float32, frozen, in evaluation mode), and repair it if its KL is above the threshold.

    A repair that does not lower the KL on the probe is taken back.
    Args: vocabulary: how many logits are compared. most_tokens: scored tokens that are measured on.
    """
    began_s = time.monotonic()
    measured = Known(reference, material.measured, vocabulary, most_tokens)
    probe = Known(reference, material.probe, vocabulary)
    few = Known(reference, material.probe, vocabulary, RANKED_TOKENS)
    result = Result(Quantised(copy.deepcopy(reference), kind), measured)

    def note(name: str, said: str, began_s: float) -> None:
        model = result.quantised.model
        kl, took_s = measured.kl(model), round(time.monotonic() - began_s, 3)
        result.steps.append(Step(step=name, kl=kl, seconds=took_s, bytes=size(model), said=said))
        told.step(result.steps[-1])

    note("quantised", f"{len(result.quantised.layers)} layers in int8", began_s)
    if result.kl <= spec.threshold:
        return result
    repairs: dict[str, Callable[[], str]] = {
        "smooth": lambda: _smooth(result, kind, reference, material, probe),
        "keep_sensitive": lambda: _keep(result, few, probe, MARGIN * spec.goal, told),
        "lora": lambda: _lora(result, reference, material, probe, vocabulary, told),
    }
    for name, repair in repairs.items():
        if name in spec.repairs and result.kl > spec.goal:
            told.check()
            began_s = time.monotonic()
            note(name, repair(), began_s)
    return result


def _smooth(result: Result, kind: Kind, reference: Any, material: Material, probe: Known) -> str:
    model = smoothed(reference, _some(material, SMOOTH_TOKENS))
    if model is None:
        return "not done: the model's layers are not built for it"
    tried = Quantised(model, kind)
    if probe.kl(tried.model) >= probe.kl(result.quantised.model):
        return "taken back: it did not help"
    result.quantised = tried
    return "large channels of activations were moved into weights"


def _keep(result: Result, few: Known, probe: Known, aim: float, told: Told) -> str:
    quantised = result.quantised
    before = probe.kl(quantised.model)
    keep_sensitive(quantised, few, probe, aim, told.check)
    if probe.kl(quantised.model) >= before:
        quantised.keep(())
        return "taken back: no layer stands out"
    return f"{len(quantised.kept)} of {len(quantised.names)} layers stay as they were"


def _lora(result: Result, reference: Any, material: Material, probe: Known, vocabulary: int, told: Told) -> str:
    lora(result.quantised, reference, material.fit, probe, vocabulary, told.train)
    adapted = sum(one.down is not None for one in result.quantised.layers.values())
    return f"{adapted} layers have an adapter beside them" if adapted else "taken back: it did not help"


def _some(material: Material, tokens: int) -> list[Batch]:
    """Batches to fit to, of about so many tokens."""
    some: list[Batch] = []
    for batch in (*material.probe, *material.fit):
        if tokens <= 0:
            break
        some.append(batch)
        tokens -= batch.input_ids.numel()
    return some
