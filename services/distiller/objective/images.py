"""The loss of an image encoder against its teacher.

The same terms as for text: the cross-entropy with the label, τ² · KL of the classes, attention transfer of the last layer,
hidden states of mapped layers. An encoder without classes has no distribution to compare; there `kl_weight` weighs the features
that it is for: the squared difference of what the two give for each patch after the last layer, each normalised over its width.
All are means over pictures. Every patch sees every other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from services.distiller.data.images import NO_LABEL
from services.distiller.layers import classifier
from services.distiller.objective import attention, checks, divergence, hidden
from services.distiller.objective.checks import LayerMap
from services.distiller.objective.chunked import wide
from services.distiller.objective.distillation import Losses
from services.distiller.objective.kept import queries_and_keys
from services.distiller.objective.task import cross_entropy
from services.distiller.refused import Refused
from services.distiller.spec import Objective


@dataclass(frozen=True)
class ImageBatch:
    """Pictures of one size.

    Attributes: pixels: [batch, channels, height, width], as the model takes them. labels: [batch]; −100: not known.
    """

    pixels: Any
    labels: Any

    def to(self, device: Any) -> ImageBatch:
        return ImageBatch(self.pixels.to(device), self.labels.to(device))

    def real(self) -> None:
        """Every patch counts (see `batch.rows`)."""


@dataclass(frozen=True)
class ImageSeen:
    """What a pass left behind.

    Attributes:
        classes: logits [batch, classes], or None.
        features: [batch, patches, width], after the last layer.
        attention, hidden: by layer.
    """

    classes: Any
    features: Any
    attention: dict[int, attention.QueriesKeys]
    hidden: dict[int, Any]


def run(model: Any, batch: ImageBatch) -> Any:
    return model(pixel_values=batch.pixels)


def see(model: Any, batch: ImageBatch, maps: Sequence[int] = (), outputs: Sequence[int] = ()) -> ImageSeen:
    """Run an encoder, and keep queries and keys of some layers, and what some layers give."""
    with (
        queries_and_keys(model, maps) as kept,
        hidden.outputs(model, outputs) as given,
        _features(model) as features,
    ):
        found = run(model, batch)
    return ImageSeen(getattr(found, "logits", None), features[0], kept, given)


class ImageDistillation(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Student and teacher, and what the one is to learn from the other; as `distillation.Distillation`, for pictures."""

    def __init__(
        self,
        student: Any,
        teacher: Any,
        objective: Objective,
        layer_map: LayerMap,
        last: LayerMap = ((-1, -1),),
        heads: tuple[int, ...] | None = None,
    ) -> None:
        """Args: see `distillation.Distillation`. Raises: Refused: the two do not go together."""
        super().__init__()
        self._heads = heads
        self.student, self.objective = student, objective
        self.teacher = None if teacher is None else teacher.requires_grad_(False).eval()
        both = [model for model in (student, teacher) if model is not None]
        ends = [classifier(model) for model in both]
        if any(ends) and len({end and end.out_features for end in ends}) > 1:
            raise Refused(
                "CLASSES_MISMATCH", "student and teacher tell other classes apart: give models of the same ones."
            )
        if len({str((model.config.image_size, model.config.patch_size)) for model in both}) > 1:
            raise Refused(
                "PATCHES_MISMATCH", "student and teacher cut pictures into other patches: give models of one size."
            )
        self._classes = bool(ends[0])
        self._layer_map = checks.hidden(student, teacher, layer_map) if objective.hidden_weight else ()
        self._attention_map = checks.attention(student, teacher, last) if objective.attention_weight else ()
        widths = [model.config.hidden_size for model in both]
        features = not self._classes and bool(objective.kl_weight)
        count = len(self._layer_map) + features if len(set(widths)) > 1 else 0
        self.projections = nn.ModuleList(nn.Linear(*widths, bias=False) for _ in range(count))

    def train(self, mode: bool = True) -> ImageDistillation:
        super().train(mode)
        if self.teacher is not None:
            self.teacher.eval()
        return self

    def forward(self, batch: ImageBatch, total: int | None = None) -> Losses:
        """The loss of a batch: sums over its pictures, divided by `total`, those of the whole step (None: of this batch).

        The cross-entropy is a mean over all pictures, of which those without a label give nothing.
        """
        own = see(self.student, batch, [a for a, _ in self._attention_map], [a for a, _ in self._layer_map])
        parts = dict(self._parts(batch, own, self._taught(batch)))
        count = len(batch.labels) if total is None else total
        return Losses(
            sum(parts.values()) / count,
            {name: part.detach() / count for name, part in parts.items()},
            len(batch.labels),
        )

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
    def _taught(self, batch: ImageBatch) -> ImageSeen:
        """The teacher's pass, if any part needs it."""
        if not (self.objective.kl_weight or self._attention_map or self._layer_map):
            return ImageSeen(None, None, {}, {})
        if self.teacher is None:
            raise Refused("TEACHER_MISSING", "there is no teacher to learn from: give one, or weigh labels alone.")
        return see(self.teacher, batch, [b for _, b in self._attention_map], [b for _, b in self._layer_map])

    def _parts(self, batch: ImageBatch, own: ImageSeen, taught: ImageSeen) -> Iterator[tuple[str, Any]]:
        objective = self.objective
        known = batch.labels != NO_LABEL
        if self._classes and objective.task_weight:  # also of no label: processes add their parts up one by one
            yield "task", objective.task_weight * cross_entropy(wide(own.classes[known]), batch.labels[known]).sum()
        if self._classes and objective.kl_weight:
            yield objective.divergence, objective.kl_weight * self._divergence(own.classes, taught.classes).sum()
        elif objective.kl_weight:
            far = hidden.distance(_normal(self._projected(-1, own.features)), _normal(taught.features))
            yield "features", objective.kl_weight * far / own.features.shape[1]
        if self._attention_map:
            every = torch.ones(own.features.shape[:2], dtype=torch.bool, device=own.features.device)
            maps = [
                attention.distance(own.attention[a], taught.attention[b], None, every, self._heads)
                for a, b in self._attention_map
            ]
            yield "attention", objective.attention_weight * sum(maps) / len(maps) / every.shape[1]
        if self._layer_map:
            states = [
                hidden.distance(self._projected(n, own.hidden[a]), taught.hidden[b])
                for n, (a, b) in enumerate(self._layer_map)
            ]
            yield "hidden", objective.hidden_weight * sum(states) / len(states) / own.features.shape[1]

    def _divergence(self, student: Any, teacher: Any) -> Any:
        objective = self.objective
        student, teacher = wide(student), wide(teacher)
        if objective.divergence == "jsd":
            return divergence.jsd(student, teacher, objective.temperature, beta=objective.jsd_beta)
        far = divergence.kl if objective.divergence == "kl" else divergence.reverse_kl
        return far(student, teacher, objective.temperature)

    def _projected(self, n: int, states: Any) -> Any:
        return self.projections[n](states) if self.projections else states


def _normal(states: Any) -> Any:
    return functional.layer_norm(wide(states), states.shape[-1:])


@contextmanager
def _features(model: Any) -> Iterator[list[Any]]:
    """What the encoder gives while the block runs, before any classes: a list of one."""
    found: list[Any] = []

    def note(module: Any, inputs: Any, output: Any) -> None:
        found[:] = [output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]]

    hook = model.base_model.register_forward_hook(note)
    try:
        yield found
    finally:
        hook.remove()
