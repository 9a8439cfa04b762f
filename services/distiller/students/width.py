"""A student of all the teacher's layers, narrower: fewer inner units of the feed-forward, fewer groups of attention heads.

What an inner unit, or a channel of a head, is worth: its mean |activation| over real tokens, times the norm of the weights that
it is multiplied with next. A group is a key-value head with its query heads, and is worth the sum of its channels. In each
layer the most valuable are kept, in their order, bit for bit; embeddings, norms and head stay whole.

Sources: Sun et al. 2024, Wanda (activation times weight); Muralidharan et al. 2024, Minitron (neurons and heads).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from services.distiller.layers import Parts, layers, parts
from services.distiller.objective.batch import rows
from services.distiller.objective.forward import run
from services.distiller.refused import Refused
from services.distiller.students.influence import Run

_MULTIPLE = 8  # widths that matrix units like


@dataclass(frozen=True)
class Narrowed:
    """`model`: the student. `heads`: the teacher's query heads that its last layer's are, in their order."""

    model: Any
    heads: tuple[int, ...]


def narrow(teacher: Any, feed_forward: float, heads: float, batches: Iterable[Any], run: Run = run) -> Narrowed:
    """A narrower copy of the teacher, which stays as it is.

    Args:
        feed_forward: the share of inner units that is kept, over 0 to 1, in eights where the teacher has such.
        heads: the share of groups that is kept, over 0 to 1: the nearest number that the kind of model can have.
        run: takes the model over a batch.
    Raises: Refused: the model's layers are built in another way, or there is no data to measure on.
    """
    config = teacher.config
    groups, kept_groups = _group_count(config), _groups(config, heads)
    found = _parts(teacher, kept_groups < groups)
    inner = _share(config.intermediate_size, feed_forward, _MULTIPLE)
    worths = _worths(teacher, found, batches, run)
    student = copy.deepcopy(teacher)
    kept = torch.arange(groups)
    for one, (units, channels) in zip(_parts(student, kept_groups < groups), worths, strict=True):
        _narrow_feed_forward(one, _best(units, inner))
        kept = _best(channels.reshape(groups, -1).sum(1), kept_groups)
        _narrow_attention(one, groups, kept)
    for layer in layers(student):
        layer.mlp.intermediate_size = inner
    student.config.intermediate_size = inner
    if kept_groups < groups:
        student.config.head_dim = found[0].attention.head_dim  # unsaid, it would be made of the number of heads
        _set_groups(student.config, kept_groups)
    _check_shapes(student)
    return Narrowed(student, tuple(_places(config.num_attention_heads, groups, kept).tolist()))


def _parts(teacher: Any, fewer_heads: bool) -> list[Parts]:
    found = [parts(layer) for layer in layers(teacher)]
    if not all(one is not None and hasattr(one.attention, "head_dim") for one in found):
        raise Refused(
            "MODEL_UNSUPPORTED",
            f"{type(teacher).__name__} has other layers than Llama or ViT, so its width cannot be cut: make the student by"
            " depth.",
        )
    whole = [one for one in found if one is not None]
    for one in whole:
        norm = getattr(one.attention, "q_norm", None)
        if fewer_heads and norm is not None and norm.weight.shape[-1] != one.attention.head_dim:
            raise Refused(
                "MODEL_UNSUPPORTED",
                f"{type(teacher).__name__} normalises all heads together: make the student by depth, or set student.heads"
                " to 1.",
            )
    return whole


def _check_shapes(student: Any) -> None:
    """Its config alone must give a model of its shapes: else what is saved could not be read."""
    with torch.device("meta"):
        bare = type(student)(copy.deepcopy(student.config))
    shapes = {name: one.shape for name, one in bare.named_parameters()}
    if any(shapes.get(name) != one.shape for name, one in student.named_parameters()):
        raise Refused(
            "MODEL_UNSUPPORTED",
            f"{type(student).__name__} cannot have fewer heads of the same width: set student.heads to 1.",
        )


def _share(whole: int, share: float, multiple: int) -> int:
    if whole % multiple:
        multiple = 1
    return max(round(whole * share / multiple), 1) * multiple


def _group_count(config: Any) -> int:
    """Key-value heads; where the config does not speak of them each head is one."""
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def _groups(config: Any, share: float) -> int:
    """The number of groups nearest to a share of them that a config of this kind takes (Llama's heads divide its width)."""
    whole = _group_count(config)
    wanted = _share(whole, share, 1)
    for count in sorted(range(1, whole), key=lambda count: abs(count - wanted)):
        if abs(count - wanted) >= whole - wanted:
            break
        trial = copy.deepcopy(config)
        _set_groups(trial, count)
        try:
            trial.validate_architecture()
        except ValueError:
            continue
        return count
    return whole


def _set_groups(config: Any, count: int) -> None:
    config.num_attention_heads = config.num_attention_heads // _group_count(config) * count
    if hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = count


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
def _worths(model: Any, found: list[Parts], batches: Iterable[Any], run: Run) -> list[tuple[Any, Any]]:
    """What each inner unit [inner] and each head's channel [heads · head width] of each layer is worth."""
    readers = [reader for one in found for reader in (one.outer, one.output)]
    sums = [torch.zeros(reader.in_features, dtype=torch.float64) for reader in readers]
    tokens = torch.zeros(len(readers), dtype=torch.int64)
    for batch in batches:
        real = batch.real()
        with ExitStack() as hooks:
            for reader, total, count in zip(readers, sums, tokens, strict=True):
                hooks.callback(reader.register_forward_pre_hook(_adding(total, count, real)).remove)
            run(model, batch)
    if not tokens.all():
        raise Refused("DATA_EMPTY", "no document to measure the width on has a label: give data with answers.")
    worth = [
        total / count * reader.weight.double().norm(dim=0).cpu()
        for reader, total, count in zip(readers, sums, tokens, strict=True)
    ]
    return list(zip(worth[::2], worth[1::2], strict=True))


def _adding(total: Any, count: Any, real: Any) -> Any:
    def add(module: Any, inputs: tuple[Any, ...]) -> None:
        seen = rows(inputs[0], real)
        count.add_(len(seen))
        total.add_(seen.abs().double().sum(0).cpu())

    return add


def _best(worth: Any, count: int) -> Any:
    """The indices of the most valuable, ascending."""
    return worth.topk(count).indices.sort().values


def _narrow_feed_forward(one: Parts, units: Any) -> None:
    for linear in one.inner:
        _keep_outputs(linear, units)
    _keep_inputs(one.outer, units)


def _narrow_attention(one: Parts, groups: int, kept: Any) -> None:
    for linear in (one.queries, one.keys, one.values):
        _keep_outputs(linear, _places(linear.out_features, groups, kept))
    _keep_inputs(one.output, _places(one.output.in_features, groups, kept))


def _places(count: int, groups: int, kept: Any) -> Any:
    """Which of `count` channels, or heads, belong to the groups that are kept."""
    return torch.arange(count).reshape(groups, -1)[kept].flatten()


def _keep_outputs(linear: Any, kept: Any) -> None:
    kept = kept.to(linear.weight.device)
    linear.weight = nn.Parameter(linear.weight.detach()[kept])
    if linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.detach()[kept])
    linear.out_features = len(kept)


def _keep_inputs(linear: Any, kept: Any) -> None:
    linear.weight = nn.Parameter(linear.weight.detach()[:, kept.to(linear.weight.device)].contiguous())
    linear.in_features = len(kept)
