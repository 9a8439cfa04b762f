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
from typing import Any

import torch
from torch import nn

from services.distiller.layers import layers
from services.distiller.objective.batch import Batch
from services.distiller.objective.forward import run
from services.distiller.refused import Refused

_MULTIPLE = 8  # widths that matrix units like


def narrow(teacher: Any, feed_forward: float, heads: float, batches: Iterable[Batch]) -> Any:
    """A narrower copy of the teacher, which stays as it is.

    Args:
        feed_forward: the share of inner units that is kept, over 0 to 1, in eights where the teacher has such.
        heads: the share of groups that is kept, over 0 to 1: the nearest number that the kind of model can have.
    Raises: Refused: the model's layers are built in another way, or there is no data to measure on.
    """
    _check(teacher)
    config = teacher.config
    groups = config.num_key_value_heads
    inner = _share(config.intermediate_size, feed_forward, _MULTIPLE)
    kept_groups = _groups(config, heads)
    worths = _worths(teacher, batches)
    student = copy.deepcopy(teacher)
    for layer, (units, channels) in zip(layers(student), worths, strict=True):
        _narrow_feed_forward(layer.mlp, _best(units, inner))
        _narrow_attention(layer.self_attn, groups, _best(channels.reshape(groups, -1).sum(1), kept_groups))
    student.config.intermediate_size = inner
    student.config.head_dim = layers(teacher)[0].self_attn.head_dim  # unsaid, it would be made of the number of heads
    _set_groups(student.config, kept_groups)
    return student


def _check(teacher: Any) -> None:
    names = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", *(f"self_attn.{name}_proj" for name in "qkvo"))
    for layer in layers(teacher):
        modules: dict[str, Any] = dict(layer.named_modules())
        if not all(isinstance(modules.get(name), nn.Linear) for name in names) or not hasattr(
            modules["self_attn"], "head_dim"
        ):
            raise Refused(
                "MODEL_UNSUPPORTED",
                f"{type(teacher).__name__} has other layers than Llama, so its width cannot be cut: make the student by depth.",
            )
        norm = modules.get("self_attn.q_norm")
        if norm is not None and norm.weight.shape[-1] != modules["self_attn"].head_dim:
            raise Refused(
                "MODEL_UNSUPPORTED",
                f"{type(teacher).__name__} normalises all heads together: make the student by depth, or keep all heads.",
            )


def _share(whole: int, share: float, multiple: int) -> int:
    if whole % multiple:
        multiple = 1
    return max(round(whole * share / multiple), 1) * multiple


def _groups(config: Any, share: float) -> int:
    """The number of groups nearest to a share of them that a config of this kind takes (Llama's heads divide its width)."""
    wanted = _share(config.num_key_value_heads, share, 1)
    for count in sorted(range(1, config.num_key_value_heads), key=lambda count: abs(count - wanted)):
        if abs(count - wanted) >= config.num_key_value_heads - wanted:
            break
        trial = copy.deepcopy(config)
        _set_groups(trial, count)
        try:
            trial.validate_architecture()
        except ValueError:
            continue
        return count
    return int(config.num_key_value_heads)


def _set_groups(config: Any, count: int) -> None:
    config.num_attention_heads = config.num_attention_heads // config.num_key_value_heads * count
    config.num_key_value_heads = count


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
def _worths(model: Any, batches: Iterable[Batch]) -> list[tuple[Any, Any]]:
    """What each inner unit [inner] and each head's channel [heads · head width] of each layer is worth."""
    readers = [reader for layer in layers(model) for reader in (layer.mlp.down_proj, layer.self_attn.o_proj)]
    sums = [torch.zeros(reader.in_features, dtype=torch.float64) for reader in readers]
    tokens = 0
    for batch in batches:
        real = batch.real()
        tokens += int(real.sum())
        with ExitStack() as hooks:
            for reader, total in zip(readers, sums, strict=True):
                hooks.callback(reader.register_forward_pre_hook(_adding(total, real)).remove)
            run(model, batch)
    if not tokens:
        raise Refused("DATA_EMPTY", "no document to measure the width on has a label: give data with answers.")
    worth = [
        total / tokens * reader.weight.double().norm(dim=0).cpu() for reader, total in zip(readers, sums, strict=True)
    ]
    return list(zip(worth[::2], worth[1::2], strict=True))


def _adding(total: Any, real: Any) -> Any:
    def add(module: Any, inputs: tuple[Any, ...]) -> None:
        total.add_(inputs[0][real].abs().double().sum(0).cpu())

    return add


def _best(worth: Any, count: int) -> Any:
    """The indices of the most valuable, ascending."""
    return worth.topk(count).indices.sort().values


def _narrow_feed_forward(mlp: Any, units: Any) -> None:
    _keep_outputs(mlp.gate_proj, units)
    _keep_outputs(mlp.up_proj, units)
    _keep_inputs(mlp.down_proj, units)
    mlp.intermediate_size = len(units)


def _narrow_attention(attention: Any, groups: int, kept: Any) -> None:
    def channels(width: int) -> Any:
        return torch.arange(width).reshape(groups, -1)[kept].flatten()

    for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
        _keep_outputs(linear, channels(linear.out_features))
    _keep_inputs(attention.o_proj, channels(attention.o_proj.in_features))


def _keep_outputs(linear: Any, kept: Any) -> None:
    kept = kept.to(linear.weight.device)
    linear.weight = nn.Parameter(linear.weight.detach()[kept])
    if linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.detach()[kept])
    linear.out_features = len(kept)


def _keep_inputs(linear: Any, kept: Any) -> None:
    linear.weight = nn.Parameter(linear.weight.detach()[:, kept.to(linear.weight.device)].contiguous())
    linear.in_features = len(kept)
