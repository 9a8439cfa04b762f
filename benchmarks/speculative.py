"""Speculative decoding in the `transformers` engine: what drafts of several depths bring, and what the worker makes of it.

The 135M chat model, fp32, greedy, one thread; drafts are the model itself without some of its layers, untrained; or a trained
student alone, whose directory is in $LADR_DRAFT. Plain and drafted rounds take turns, a new batch each time. Speed is in tokens
for each second of processor time, against no draft. "governed" is what a worker does: it measures, from the first round to the
last, and leaves a draft out that loses time. What a pass over several tokens takes, against one over one, says how much
of a round is checking: near 1 where weights have to be fetched from memory, more where arithmetic takes the time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from benchmarks.report import Report, Spread, Table
from benchmarks.transformers_batching import bundled, tiny
from services.distiller.students.depth import cut, evenly_spaced
from services.worker.engine import Sampling
from services.worker.engines.batching import Batch, Draft, Sequence
from services.worker.engines.cache import Reader
from services.worker.engines.drafting import Governor

CONTEXT = 256
NEW = 64
PROMPT = 24
ROUNDS = 2
PASSES = 21


class Always(Governor):
    """Drafts whatever it costs."""

    def wants(self, rows: int) -> bool:
        return True


@dataclass(frozen=True)
class Turn:
    """One batch of answers."""

    per_cpu_s: float
    answers: list[list[int]]
    drafted: int
    accepted: int


def run(quick: bool) -> Report:
    """Measure, in some minutes. Quick: a tiny model of random weights, one round."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, text = tiny() if quick else bundled()
    model = model.eval().requires_grad_(False)
    drafts = _drafts(model, quick)
    columns = ("draft", "tokens a round", "at once", "accepted", "always ÷ none", "governed ÷ none", "same answers")
    table = Table("fp32, one thread, greedy", columns)
    for name, draft in drafts.items():
        for tokens in (3,) if quick else (1, 3):
            for at_once in (2,) if quick else (1, 8):
                table.add(name, tokens, at_once, *_compare(model, draft, tokens, at_once, text, 1 if quick else ROUNDS))
    return Report([table, _passes(model, text, quick)])


def _passes(model: Any, text: list[int], quick: bool) -> Table:
    table = Table("A pass of the model alone", ("at once", "tokens of each", "÷ one token"))
    for at_once in (1, 8):
        reader = _reader(model, at_once)
        for _ in range(at_once):
            reader.add()
        reader.read(slice(0, at_once), [text[:PROMPT]] * at_once, [0] * at_once)

        def took_s(count: int, reader: Reader = reader, at_once: int = at_once) -> float:
            began_s = time.process_time()
            reader.read(slice(0, at_once), [text[:count]] * at_once, [PROMPT] * at_once, keep=count)
            return time.process_time() - began_s

        for count in (2, 4):
            pairs = [(took_s(count), took_s(1)) for _ in range(2 if quick else PASSES)]
            table.add(at_once, count, Spread.of([several / one for several, one in pairs[1:]]))
    return table


def _compare(model: Any, draft: Any, tokens: int, at_once: int, text: list[int], rounds: int) -> tuple[Any, ...]:
    def turn(governor: Callable[[], Governor] | None) -> Turn:
        own = Draft(_reader(draft, at_once), tokens, governor()) if governor else None
        return _answer(Batch(_reader(model, at_once), at_once, CONTEXT, own), text, at_once)

    turn(None)  # the first pass through a model is slower
    lasting = Governor()
    always, governed, accepted, same, total = [], [], [], 0, 0
    for _ in range(rounds):
        plain, every, chosen = turn(None), turn(Always), turn(lambda: lasting)
        always.append(every.per_cpu_s / plain.per_cpu_s)
        governed.append(chosen.per_cpu_s / plain.per_cpu_s)
        accepted.append(every.accepted / every.drafted)
        same += sum(a == b for one in (every, chosen) for a, b in zip(one.answers, plain.answers, strict=True))
        total += 2 * at_once
    return Spread.of(accepted), Spread.of(always), Spread.of(governed), f"{same}/{total}"


def _answer(batch: Batch, text: list[int], at_once: int) -> Turn:
    running = []
    for number in range(at_once):
        prompt = text[PROMPT * number : PROMPT * (number + 1)]
        running.append(Sequence(list(prompt), PROMPT, Sampling(temperature=0.0), PROMPT + NEW))
        batch.add(running[-1])
    began_s = time.process_time()
    while len(batch):
        for step in batch.step():
            if step.length == step.sequence.limit:
                batch.remove(step.sequence)
    took_s = time.process_time() - began_s
    draft = batch.draft
    return Turn(
        at_once * NEW / took_s,
        [sequence.tokens[PROMPT:] for sequence in running],
        draft.drafted if draft else 0,
        draft.accepted if draft else 0,
    )


def _reader(model: Any, slots: int) -> Reader:
    return Reader(model, model.config.num_hidden_layers, slots, CONTEXT)


def _drafts(model: Any, quick: bool) -> dict[str, Any]:
    """The trained one, if there is one; else the first and last layers of the model, and as many in even steps between them."""
    layers = model.config.num_hidden_layers
    if directory := os.environ.get("LADR_DRAFT"):
        trained = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        return {f"trained, {trained.config.num_hidden_layers} of {layers}": trained.eval().requires_grad_(False)}
    return {f"{kept} of {layers}": cut(model, evenly_spaced(layers, kept)) for kept in ((1,) if quick else (5, 10, 20))}
