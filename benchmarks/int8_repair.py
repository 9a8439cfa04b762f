"""INT8 with repair: what quantising costs the 135M chat model, what each repair brings, and what the forms take.

W8A8: weights and activations in 8 bits. The KL to the unquantised model, in nats a token, is measured on conversations that no
repair was fitted to. LoRA is tried even where the goal is reached without it, to show what it brings; its row says so then.
Weight-only has no repair here, to stand beside it. One thread; the forms take turns, so that their speeds, in tokens for each
second of processor time, are of the same minutes. `LADR_DIALOGUES` sets how many conversations there are in all (400).
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.report import Report, Spread, Table
from ladr.config_distiller import DistillerSettings
from services.common.int8.form import read, size, write
from services.common.int8.notes import Notes, Step
from services.common.telemetry import quieten
from services.distiller.data.corpus import find, scan
from services.distiller.data.encode import Encoder
from services.distiller.data.packing import Packed
from services.distiller.data.stream import Reader
from services.distiller.int8.dialogues import share_out
from services.distiller.int8.known import Known
from services.distiller.int8.lora import lora
from services.distiller.int8.quantised import Quantised
from services.distiller.int8.repair import Material, Result, Told, quantise
from services.distiller.objective.batch import Batch as Packs
from services.distiller.spec import Int8
from services.distiller.trainer import models
from services.distiller.trainer.batches import batch, chunks
from services.worker.engine import Sampling
from services.worker.engines.batching import Batch
from services.worker.engines.batching import Sequence as Answer
from services.worker.engines.cache import Reader as CacheReader
from tests.distiller import tiny

MIB = 1 << 20
HOLDOUT = 0.05
TOKENS = 256  # of a packed sequence
MEASURED_TOKENS = 2000
PROMPT, NEW, CONTEXT = 24, 32, 256
ROUNDS = 3


@dataclass(frozen=True)
class Source:
    """A model as the trainer reads it, and conversations for it."""

    model: Any
    reader: Reader
    padding: int


def run(quick: bool) -> Report:
    """Measure, in some minutes. Quick: a tiny model of random weights, one round."""
    quieten()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        return _run(_source(Path(directory), quick), Path(directory), quick)


def _run(source: Source, directory: Path, quick: bool) -> Report:
    reference, vocabulary = source.model, source.model.config.vocab_size
    dialogues = share_out(source.reader, int(os.environ.get("LADR_DIALOGUES", "400")), 0, source.padding)
    material = Material(
        _batches(dialogues.probe),
        _batches(dialogues.fit),
        _batches(dialogues.measured),
    )
    goal = 1e-6 if quick else Int8().goal
    spec = Int8(kind="w8a8", threshold=1e-6 if quick else Int8().threshold, goal=goal)
    trained = [0, 0]

    def count(kl: float, tokens: int) -> None:
        trained[0] += 1
        trained[1] += tokens

    began_s = time.monotonic()
    result = quantise(reference, "w8a8", spec, material, vocabulary, MEASURED_TOKENS, Told(train=count))
    took_s = time.monotonic() - began_s
    repairs = Table("W8A8, step by step", ("step", "KL, nats", "took, s", "weights, MiB", "what came of it"))
    for step in result.steps:
        repairs.add(step.step, step.kl, step.seconds, step.bytes / MIB, step.said)
    forms = {"float32": reference, **_forms(reference, result.quantised, result.steps, directory)}
    table = Table(
        "The forms side by side",
        (
            "form",
            "KL, nats",
            "weights, MiB",
            "prompt, tok/cpu-s",
            "answers, 1 at once, tok/cpu-s",
            "8 at once, tok/cpu-s",
        ),
    )
    ids = [token for one in dialogues.measured for token in one.ids][: 8 * PROMPT * 4]
    speeds = _speeds(forms, ids, 1 if quick else ROUNDS)
    for name, model in forms.items():
        table.add(name, result.measured.kl(model), size(model) / MIB, *speeds[name])
    if result.steps[-1].step != "lora":
        repairs.add(*_lora_too(result, reference, material, vocabulary, count))
    return Report(
        [repairs, table],
        [
            f"{dialogues.fitted} conversations to fit to, {result.measured.tokens} tokens of {dialogues.kept_apart} others"
            f" to measure on; {trained[0]} steps of LoRA over {trained[1]} tokens; {took_s:.0f} s for all repairs.",
        ],
    )


def _lora_too(
    result: Result, reference: Any, material: Material, vocabulary: int, count: Callable[[float, int], None]
) -> tuple[str, float, float, float, str]:
    """The row of what adapters bring beyond the goal."""
    began_s = time.monotonic()
    lora(result.quantised, reference, material.fit, Known(reference, material.probe, vocabulary), vocabulary, count)
    kl = result.measured.kl(result.quantised.model)
    took_s = round(time.monotonic() - began_s, 3)
    return "lora", kl, took_s, size(result.quantised.model) / MIB, "not needed for the goal; a job would not do it"


def _source(directory: Path, quick: bool) -> Source:
    if quick:
        where = str(tiny.save(directory / "tiny"))
        data = tiny.write(directory / "data.jsonl", tiny.conversations(60))
    else:
        where = models.find("", DistillerSettings(state=directory / "state", model_root=directory))
        data = find("", directory)
    words = models.tokenizer(where)
    ends = models.ends(where, words)
    reader = Reader(scan(data, HOLDOUT, 0), Encoder(words, ends), TOKENS)
    return Source(models.weights(where, "float32").eval().requires_grad_(False), reader, ends[0])


def _forms(reference: Any, repaired: Quantised, steps: Sequence[Step], directory: Path) -> dict[str, Any]:
    """The models in 8 bits, as a worker reads them."""
    made = {
        "weight only": Quantised(copy.deepcopy(reference), "weight_only"),
        "W8A8": Quantised(copy.deepcopy(reference), "w8a8"),
        "W8A8, repaired": repaired,
    }
    found = {}
    for number, (name, one) in enumerate(made.items()):
        rank = {layer: module.down.shape[0] for layer, module in one.layers.items() if module.down is not None}
        kind = "weight_only" if name == "weight only" else "w8a8"
        place = directory / f"form-{number}"
        place.mkdir()
        write(one.model, Notes(kind=kind, layers=tuple(one.layers), rank=rank, steps=tuple(steps)), place)
        found[name] = read(place)
    return found


def _batches(sequences: list[Packed]) -> list[Packs]:
    return [batch(some) for some in chunks(sequences, 2)]


def _speeds(forms: dict[str, Any], ids: list[int], rounds: int) -> dict[str, tuple[Spread, Spread, Spread]]:
    """Tokens for each second of processor time: reading 512, and answering 1 and 8 at once."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in forms}
    for number in range(rounds + 1):
        for name, model in forms.items():
            turn = (_reading(model, ids[:512]), _answering(model, ids, 1), _answering(model, ids, 8))
            if number:  # the first pass through a model is slower
                found[name].append(turn)
    return {name: tuple(Spread.of(one) for one in zip(*turns, strict=True)) for name, turns in found.items()}  # type: ignore[misc]


@torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
def _reading(model: Any, ids: list[int]) -> float:
    began_s = time.process_time()
    model(input_ids=torch.tensor([ids[: model.config.max_position_embeddings]]), use_cache=False, logits_to_keep=1)
    return len(ids) / (time.process_time() - began_s)


def _answering(model: Any, ids: list[int], at_once: int) -> float:
    made = Batch(CacheReader(model, model.config.num_hidden_layers, at_once, CONTEXT), at_once, CONTEXT)
    for number in range(at_once):
        prompt = ids[PROMPT * number : PROMPT * (number + 1)]
        made.add(Answer(list(prompt), len(prompt), Sampling(temperature=0.0), len(prompt) + NEW))
    tokens, began_s = 0, time.process_time()
    while len(made):
        for step in made.step():
            tokens += 1
            if step.length == step.sequence.limit:
                made.remove(step.sequence)
    return tokens / (time.process_time() - began_s)
