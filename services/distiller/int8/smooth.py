"""Smoothing: large channels of activations are made smaller, and the weights that read them larger.

Each input channel j of a layer is divided by s_j = max|x_j|^α / max|w_j|^(1 − α); what writes the channel (a norm, or the
linear layer before) takes 1 / s_j into its weight, and what reads it takes s_j. The model computes what it did before, and has
the same layers. The output head is left out: it often is the embedding, too.

Source: Xiao et al. 2023, SmoothQuant.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from services.distiller.layers import layers
from services.distiller.objective.batch import Batch
from services.distiller.objective.forward import run

ALPHA = 0.5
_LEAST = 1e-5
_SAME = 1e-3
"""How far states may be from what they were, relative to the largest: float32 rounds otherwise in another scale."""


@dataclass(frozen=True)
class Reading:
    """`writer` makes what `readers` read: a norm, or a linear layer whose outputs each serve `repeats` channels of a reader
    (`size` neighbouring ones at a time, as key-value heads do)."""

    writer: Any
    readers: tuple[Any, ...]
    repeats: int = 1
    size: int = 1


def smoothed(model: Any, batches: Iterable[Batch], alpha: float = ALPHA) -> Any | None:
    """A smoothed copy; None: the model's layers are not built so that scales can move between them."""
    seen = list(batches)
    made = copy.deepcopy(model)
    found = [reading for layer in layers(made) for reading in readings(layer)]
    if not found:
        return None
    read = {id(reader): reader for reading in found for reader in reading.readers}
    peaks = largest(made, list(read.values()), seen)
    for reading in found:
        _move(reading, peaks, alpha)
    return made if _same(model, made, seen[0]) else None


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
def largest(model: Any, linears: Iterable[Any], batches: Iterable[Batch]) -> dict[int, Any]:
    """The largest magnitude of each input channel [in] over all real tokens, by the id of the layer."""
    peaks: dict[int, Any] = {}
    watched = list(linears)
    for batch in batches:
        noting = _noting(peaks, batch.real())
        with ExitStack() as hooks:
            for linear in watched:
                hooks.callback(linear.register_forward_pre_hook(noting).remove)
            run(model, batch)
    return peaks


def _noting(peaks: dict[int, Any], real: Any) -> Any:
    def note(module: Any, inputs: tuple[Any, ...]) -> None:
        seen = inputs[0][real].abs().amax(0)
        before = peaks.get(id(module))
        peaks[id(module)] = seen if before is None else torch.maximum(before, seen)

    return note


def readings(layer: Any) -> Iterator[Reading]:
    """Where a scale can move in a decoder layer of the usual names."""
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    queries = _linears(attention, "q_proj", "k_proj", "v_proj")
    gates = _linears(mlp, "gate_proj", "up_proj")
    out, down = _linears(attention, "o_proj"), _linears(mlp, "down_proj")
    if queries and (norm := getattr(layer, "input_layernorm", None)) is not None:
        yield Reading(norm, queries)
    if gates and (norm := getattr(layer, "post_attention_layernorm", None)) is not None:
        yield Reading(norm, gates)
    if queries and out and out[0].in_features % queries[2].out_features == 0:
        repeats = out[0].in_features // queries[2].out_features
        yield Reading(queries[2], out, repeats, getattr(attention, "head_dim", 1))
    if gates and down and down[0].in_features == gates[1].out_features:
        yield Reading(gates[1], down)


def _linears(module: Any, *names: str) -> tuple[Any, ...]:
    found = tuple(getattr(module, name, None) for name in names)
    return found if all(type(one) is nn.Linear for one in found) else ()


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
def _move(reading: Reading, peaks: Mapping[int, Any], alpha: float) -> None:
    if any(id(reader) not in peaks for reader in reading.readers):
        return
    activations = peaks[id(reading.readers[0])]
    weights = torch.stack([reader.weight.abs().amax(0) for reader in reading.readers]).amax(0)
    # [in] → [writers, repeats, size]: the channels that one output of the writer becomes have one scale
    shape = (-1, reading.repeats, reading.size)
    activations, weights = (one.view(shape).amax(1, keepdim=True) for one in (activations, weights))
    scale = activations.clamp(min=_LEAST) ** alpha / weights.clamp(min=_LEAST) ** (1 - alpha)
    scale = torch.where((activations > 0) & (weights > 0), scale, torch.ones_like(scale))
    own = scale.reshape(-1)
    writer = reading.writer
    writer.weight.data = writer.weight / (own if writer.weight.ndim == 1 else own[:, None])
    if getattr(writer, "bias", None) is not None:
        writer.bias.data = writer.bias / own
    each = scale.expand(-1, reading.repeats, -1).reshape(-1)
    for reader in reading.readers:
        reader.weight.data = reader.weight * each


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
def _same(model: Any, made: Any, batch: Batch) -> bool:
    """Whether both still compute the same."""
    one, other = (run(each, batch) for each in (model, made))
    return bool((one - other).abs().max() <= _SAME * one.abs().max())
