"""Our continuous batching over transformers, against padded `generate` and transformers' own continuous batching.

The 135M chat model, prompts of 8 to 24 tokens, greedy, one thread, in fp32 and in bf16: 1, 8, 16 and 32 requests at once, of
16 new tokens each, and 16 requests of 4 to 34. The three ways take turns in each round. Tokens/s are those that were asked for,
prompt reading included. Ratios are of tokens for each second of processor time, which other work on the machine disturbs least.
All answers are compared, token by token, with those of padded `generate`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.utils import logging

from benchmarks.report import Report, Spread, Table
from services.common.sources import locate
from services.worker.engine import Sampling
from services.worker.engines.batching import Batch, Sequence
from services.worker.engines.cache import Reader
from tests.processes import ROOT

CONTEXT = 64
NEW = 16
OURS, PADDED, THEIRS = "ours", "padded", "theirs"
BUDGET_S = 150.0  # for each number type: no round begins that would not end within it
PATIENCE_S = 60.0  # for one answer of theirs, which may never come
Answers = list[list[int]]


@dataclass(frozen=True)
class Job:
    """Requests that come at once: their prompts, and how many tokens each wants."""

    name: str
    prompts: list[list[int]]
    lengths: list[int]


class Way(Protocol):
    """A way to have a job done."""

    def ready(self, job: Job) -> AbstractContextManager[Callable[[], Answers]]:
        """Get ready for a job, which is not timed; then a call does it, which is."""


@dataclass
class Turns:
    """The rounds of one way with one job."""

    per_s: list[float] = field(default_factory=list)
    per_cpu_s: list[float] = field(default_factory=list)
    answers: Answers = field(default_factory=list)

    def take(self, way: Way, job: Job) -> None:
        with way.ready(job) as answer:
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            self.answers = answer()
            wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        self.per_s.append(sum(job.lengths) / wall_s)
        self.per_cpu_s.append(sum(job.lengths) / cpu_s)


def run(quick: bool) -> Report:
    """Measure, in a few minutes. Quick: a tiny model of random weights, one round."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, text = tiny() if quick else bundled()
    model = model.eval().requires_grad_(False)
    jobs = [_job(text, f"{n}", [NEW] * n) for n in ((8,) if quick else (1, 8, 16, 32))]
    jobs.append(_job(text, "16, uneven", [4 + 2 * n for n in range(16)]))
    report = Report()
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with torch.inference_mode():
            report.tables.append(_compare(name, model.to(dtype), jobs, 1 if quick else 3, report.notes))
    return report


def _compare(name: str, model: Any, jobs: list[Job], rounds: int, notes: list[str]) -> Table:
    ways: dict[str, Way] = {OURS: _Ours(model), PADDED: _Padded(model), THEIRS: _Theirs(model)}
    for own, way in list(ways.items()):  # the first pass through a model is slower
        try:
            Turns().take(way, jobs[0])
        except Exception as error:
            if own != THEIRS:
                raise
            del ways[THEIRS]
            notes.append(f"{name}: transformers' own continuous batching does not run here: {error!r}")
    turns = {(one, job.name): Turns() for one in ways for job in jobs}
    done, began_s, round_s = 0, time.monotonic(), 0.0
    while done < rounds and (not done or time.monotonic() + round_s < began_s + BUDGET_S):
        round_began_s = time.monotonic()
        for job in jobs:
            for own, way in ways.items():
                turns[own, job.name].take(way, job)
        done, round_s = done + 1, time.monotonic() - round_began_s
    columns = ("at once", *(f"{one} [tokens/s]" for one in ways), "ours ÷ padded", "ours ÷ theirs", "same answers")
    table = Table(f"{name}, one thread, rounds: {done}", columns)
    for job in jobs:
        found = {one: turns[one, job.name] for one in ways}
        table.add(
            job.name,
            *(Spread.of(one.per_s) for one in found.values()),
            *(_ratio(found[OURS], found.get(other)) for other in (PADDED, THEIRS)),
            ", ".join(f"{one} {_same(found[one], found[PADDED])}" for one in ways if one != PADDED),
        )
    return table


def _ratio(one: Turns, other: Turns | None) -> Spread | str:
    if other is None:
        return "–"
    return Spread.of([a / b for a, b in zip(one.per_cpu_s, other.per_cpu_s, strict=True)])


def _same(one: Turns, other: Turns) -> str:
    return f"{sum(a == b for a, b in zip(one.answers, other.answers, strict=True))}/{len(other.answers)}"


class _Ours:
    """The batch that the `transformers` engine of the worker runs."""

    def __init__(self, model: Any) -> None:
        self._batch = Batch(Reader(model, model.config.num_hidden_layers, 32, CONTEXT), 32, CONTEXT)

    @contextmanager
    def ready(self, job: Job) -> Iterator[Callable[[], Answers]]:
        yield partial(self._answer, job)

    def _answer(self, job: Job) -> Answers:
        running = [
            Sequence(list(prompt), len(prompt), Sampling(temperature=0.0), len(prompt) + length)
            for prompt, length in zip(job.prompts, job.lengths, strict=True)
        ]
        for sequence in running:
            self._batch.add(sequence)
        while len(self._batch):
            for step in self._batch.step():
                if len(step.sequence.tokens) >= step.sequence.limit:
                    self._batch.remove(step.sequence)
        return [sequence.tokens[sequence.prompt_length :] for sequence in running]


class _Padded:
    """`model.generate` on left-padded prompts, for as long as the longest answer."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @contextmanager
    def ready(self, job: Job) -> Iterator[Callable[[], Answers]]:
        yield partial(self._answer, job)

    def _answer(self, job: Job) -> Answers:
        longest = max(map(len, job.prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in job.prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in job.prompts])
        output = self._model.generate(ids, attention_mask=mask, generation_config=_greedy(max(job.lengths)))
        answers = output[:, longest:].tolist()
        return [answer[:length] for answer, length in zip(answers, job.lengths, strict=True)]


class _Theirs:
    """transformers' continuous batching, on a copy: it exchanges the attention of the model that it is given."""

    def __init__(self, model: Any) -> None:
        self._model = copy.deepcopy(model)

    @contextmanager
    def ready(self, job: Job) -> Iterator[Callable[[], Answers]]:
        manager = self._model.init_continuous_batching(
            generation_config=_greedy(max(job.lengths)),
            continuous_batching_config=ContinuousBatchingConfig(page_size=64, num_blocks=128, max_batch_tokens=512),
        )
        manager.start()
        try:
            yield partial(self._answer, manager, job)
        finally:
            manager.stop(block=True)

    def _answer(self, manager: Any, job: Job) -> Answers:
        names = [
            manager.add_request(prompt, max_new_tokens=length)
            for prompt, length in zip(job.prompts, job.lengths, strict=True)
        ]
        answers: dict[str, list[int]] = {}
        while len(answers) < len(names):
            result = manager.get_result(timeout=PATIENCE_S)
            if result is None:
                raise RuntimeError("it gave no answer")
            if result.is_finished():
                answers[result.request_id] = list(result.generated_tokens)
        return [answers[name] for name in names]


def _greedy(length: int) -> GenerationConfig:
    """To the full length: no token ends an answer."""
    return GenerationConfig(do_sample=False, max_new_tokens=length, pad_token_id=0, eos_token_id=-1)


def _job(text: list[int], name: str, lengths: list[int]) -> Job:
    """Prompts are pieces of one text, of 8 to 24 tokens."""
    sizes = [8 + 16 * n // max(len(lengths) - 1, 1) for n in range(len(lengths))]
    prompts = [text[24 * n : 24 * n + size] for n, size in enumerate(sizes)]
    return Job(name, prompts, lengths)


def bundled() -> tuple[Any, list[int]]:
    """The bundled chat model in fp32, and the tokens of a text."""
    where, gguf = locate("", ROOT)
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=gguf)
    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=gguf, dtype=torch.float32)
    return model, tokenizer((ROOT / "LICENSE").read_text())["input_ids"]


def tiny() -> tuple[Any, list[int]]:
    """Random weights, and bytes for tokens."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config), list((ROOT / "LICENSE").read_bytes())
