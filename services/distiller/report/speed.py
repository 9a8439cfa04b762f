"""Tokens a second of two models side by side: they take turns, so that a machine that slows down slows both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from transformers import DynamicCache

ROUNDS = 5
"""After one that is not counted."""
PROMPT, DECODED = 128, 24
"""Tokens that are read at once, and then written one by one."""


@dataclass(frozen=True)
class Speed:
    """Of one model, at batch 1.

    Attributes:
        prefill, decode: tokens a second, medians of the rounds. rounds: of decode, each.
        weight_bytes: all weights, tied ones once.
        peak_bytes: most memory that it needs by itself with its weights; 0: not known, as on a processor.
    """

    prefill: float
    decode: float
    rounds: tuple[float, ...]
    weight_bytes: int
    peak_bytes: int

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one model writes as another: the median of the rounds, the least and the most of them."""

    median: float
    low: float
    high: float


def ratio(rounds: Sequence[float], others: Sequence[float]) -> Ratio:
    """Of the same rounds of two models: what slows the machine down in a round slows both, and cancels out."""
    found = [one / other for one, other in zip(rounds, others, strict=True)]
    return Ratio(median(found), min(found), max(found))


@torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
def race(
    models: dict[str, Any],
    vocabulary: int,
    done: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Speed]:
    """The speeds of the models, by name.

    Args: vocabulary: tokens that all of them know. done: called after each round.
    """
    prompt = torch.randint(vocabulary, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    peaks = dict.fromkeys(models, 0)
    for number in range(1 + ROUNDS):
        for name, model in list(models.items())[:: 1 if number % 2 else -1]:  # nobody has the better place
            before = _reset_peak(model.device)
            times[name].append(_round(model, prompt.to(model.device), clock))
            peaks[name] = max(peaks[name], _peak(model.device) - before)
        done()
    return {name: _speed(model, times[name][1:], peaks[name]) for name, model in models.items()}


def _speed(model: Any, times: list[tuple[float, float]], working_bytes: int) -> Speed:
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    rounds = tuple(DECODED / decode for _, decode in times)
    return Speed(
        prefill=PROMPT / median(prefill for prefill, _ in times),
        decode=median(rounds),
        rounds=rounds,
        weight_bytes=weights,
        peak_bytes=weights + working_bytes if working_bytes else 0,
    )


def _round(model: Any, prompt: Any, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of reading the prompt, and of writing after it."""
    cache = DynamicCache(config=model.config)
    start = _now(model.device, clock)
    seen = model(prompt, cache=cache, logits_to_keep=1)
    read = _now(model.device, clock)
    for _ in range(DECODED):
        token = seen.logits[:, -1:].argmax(-1)
        seen = model(token, cache=cache)
    return read - start, _now(model.device, clock) - read


def _now(device: Any, clock: Callable[[], float]) -> float:
    """The time once the device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()


def _reset_peak(device: Any) -> int:
    """Bytes that are held now, from which the peak is counted anew."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


def _peak(device: Any) -> int:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0
