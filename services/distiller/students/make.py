"""The student that a job asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from services.distiller.layers import layers
from services.distiller.objective import checks
from services.distiller.objective.checks import LayerMap
from services.distiller.objective.forward import run
from services.distiller.refused import Refused
from services.distiller.spec import Student
from services.distiller.students import depth, width
from services.distiller.students.influence import Run, block_influence


@dataclass(frozen=True)
class Made:
    """A student before its first step.

    Attributes:
        model: in training mode, every weight to be trained, of the teacher's type and on its device.
        layer_map: which layer of the teacher each of its layers is compared with.
        description: a sentence for logs, card and report.
        heads: the teacher's heads that those of its last layer are; None: as many neighbours stand for one as it takes.
    """

    model: Any
    layer_map: LayerMap
    description: str
    heads: tuple[int, ...] | None = None


def make(
    teacher: Any,
    student: Student,
    batches: Iterable[Any],
    load: Callable[[str], Any] | None = None,
    run: Run = run,
) -> Made:
    """Make a student; the teacher stays as it is.

    Args:
        batches: what layers and widths are measured on, some thousand tokens; not read where nothing is measured.
        load: gives the model of a source, "" the teacher's own anew; for a student of kind "model".
        run: takes a model over a batch.
    Raises: Refused: it cannot be made of this teacher.
    """
    heads: tuple[int, ...] | None = None
    if student.kind == "depth":
        model, layer_map, description = _by_depth(teacher, student, batches, run)
    elif student.kind == "width":
        made = width.narrow(teacher, student.feed_forward, student.heads, batches, run)
        model, heads = made.model, made.heads
        layer_map = tuple((index, index) for index in range(len(layers(teacher))))
        description = f"all {len(layer_map)} layers, {_widths(model, teacher)}"
    elif load is None:
        raise ValueError("a student of kind 'model' needs `load`")
    else:
        model = load(student.source)
        layer_map = checks.hidden(model, teacher, None)
        description = f"the model {student.source}" if student.source else "the teacher itself"
    return Made(model.requires_grad_(True).train(), layer_map, description, heads)


def _by_depth(teacher: Any, student: Student, batches: Iterable[Any], run: Run) -> tuple[Any, LayerMap, str]:
    count = len(layers(teacher))
    wanted = student.layers or max(round(count * 2 / 3), 1)
    if wanted > count:
        raise Refused("LAYERS_MISMATCH", f"the teacher has {count} layers: keep at most so many, not {wanted}.")
    if student.layer_indices:
        kept, how = list(student.layer_indices), "as given"
    elif student.choice == "every_kth":
        kept, how = depth.evenly_spaced(count, wanted), "evenly spaced"
    else:
        kept, how = depth.most_influential(block_influence(teacher, batches, run), wanted), "by block influence"
    model = depth.cut(teacher, kept)
    return model, tuple(enumerate(kept)), f"layers {', '.join(map(str, kept))} of {count}, {how}"


def _widths(model: Any, teacher: Any) -> str:
    few, many = model.config, teacher.config
    return (
        f"feed-forward {few.intermediate_size} of {many.intermediate_size}, "
        f"attention heads {few.num_attention_heads} of {many.num_attention_heads}"
    )
