"""The loss of a student against its teacher, as one module that a trainer calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from services.distiller.layers import head
from services.distiller.objective import attention, checks, divergence, hidden, top_k
from services.distiller.objective.batch import IGNORE, Batch, documents
from services.distiller.objective.checks import LayerMap
from services.distiller.objective.chunked import CHUNK, head_loss, wide
from services.distiller.objective.forward import Seen, run, see, whole
from services.distiller.objective.refusals import token_weights
from services.distiller.objective.task import cross_entropy
from services.distiller.refused import Refused
from services.distiller.spec import Objective

_Term = Callable[[Any, slice], Any]
"""From logits of a chunk and where it is: the weighted loss of each token."""


@dataclass(frozen=True)
class Losses:
    """The loss of a batch.

    Attributes:
        total: scalar, differentiable: the sum of the parts.
        parts: scalars, detached, weights applied: "task", "kl" (or "reverse_kl", "jsd"), "attention", "hidden", or "refusal".
        tokens: how many tokens of this batch were scored (of pairs: how many rows).
    """

    total: Any
    parts: dict[str, Any]
    tokens: int


class Distillation(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Student and teacher, and what the one is to learn from the other.

    `student` is trained; `teacher` is frozen and stays in evaluation mode; `projections` (where hidden states of different
    width are compared) is trained with the student and thrown away. Layers, student, teacher or the whole module may be wrapped
    by `fully_shard` or DistributedDataParallel: both models are called as modules, and the head's loss is computed inside the
    call.
    """

    def __init__(
        self,
        student: Any,
        teacher: Any,
        objective: Objective,
        layer_map: LayerMap | None = None,
        *,
        attention_map: LayerMap | None = None,
        heads: tuple[int, ...] | None = None,
        vocabulary: int | None = None,
        chunk: int = CHUNK,
    ) -> None:
        """Check that the two go together.

        Args:
            student: a causal language model of transformers.
            teacher: another; None where every batch has the teacher's top k, or kl_weight is 0.
            layer_map: what hidden states are compared; None: the student's layers evenly over the teacher's depth.
            attention_map: what attention maps are compared; None: the last layer of each.
            heads: the teacher's heads that the student's are compared with, one by one; None: see `attention.same_heads`.
            vocabulary: how many logits are compared, as `checks.vocabulary` says; None: both must have as many.
            chunk: tokens whose logits are in memory at once.
        Raises: Refused: they do not go together.
        """
        super().__init__()
        self.student, self.objective, self._chunk = student, objective, chunk
        self.teacher = None if teacher is None else teacher.requires_grad_(False).eval()
        self.vocabulary = vocabulary if vocabulary is not None else checks.vocabulary(student, teacher)
        self._heads = heads
        self._layer_map: LayerMap = ()
        self._attention_map: LayerMap = ()
        if objective.attention_weight:
            last = ((-1, -1),)
            self._attention_map = checks.attention(student, teacher, last if attention_map is None else attention_map)
        if objective.hidden_weight:
            self._layer_map = checks.hidden(student, teacher, layer_map)
        widths = [model.config.hidden_size for model in (student, teacher) if model is not None]
        count = len(self._layer_map) if len(set(widths)) > 1 else 0
        self.projections = nn.ModuleList(nn.Linear(*widths, bias=False) for _ in range(count))

    def train(self, mode: bool = True) -> Distillation:
        super().train(mode)
        if self.teacher is not None:
            self.teacher.eval()
        return self

    def forward(self, batch: Batch, scored_total: int | None = None) -> Losses:
        """The loss of a batch: sums over its scored tokens, divided by `scored_total`.

        A step whose gradient is summed over micro-batches and processes gives the number of all its scored tokens (the sum of
        `Batch.scored`) with each of them; the sum of the losses is then what one large batch has. (DistributedDataParallel and
        `fully_shard` average gradients over processes: multiply the loss by their number.) None: those of this batch.

        Raises: Refused: ALL_LABELS_MASKED: there is nothing to score.
        """
        tokens = batch.scored()
        total = tokens if scored_total is None else scored_total
        if total <= 0:
            raise Refused(
                "ALL_LABELS_MASKED", "no token of this batch is scored: give data with answers, or set score_prompts."
            )
        loss, parts = self._pairs(batch) if batch.pairs else self._parts(batch)
        return Losses(loss / total, {name: part.detach() / total for name, part in parts.items()}, tokens)

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
    def teacher_top_k(self, batch: Batch, k: int) -> tuple[Any, Any]:
        """What a batch needs in the teacher's stead: ids [batch, time, k] and log-probabilities [batch, time, k].

        They are made for scored positions; all others have zeros.

        Raises: Refused: there is no teacher, or its vocabulary leaves no tail behind k tokens.
        """
        if self.teacher is None:
            raise Refused("TEACHER_MISSING", "there is no teacher to store the logits of: give one.")
        if not 0 < k < self.vocabulary:
            raise Refused("TOP_K_TOO_LARGE", f"of {self.vocabulary} tokens, keep 1 to {self.vocabulary - 1}: not {k}.")
        scored = batch.targets() != IGNORE
        ids = torch.zeros(*scored.shape, k, dtype=torch.int64, device=scored.device)
        values = torch.zeros(*scored.shape, k, device=scored.device)
        known = self._teacher_head(run(self.teacher, batch, lambda hidden: hidden)[scored])
        found = [
            top_k.most_likely(wide(known(slice(start, start + self._chunk))), k, self.objective.temperature)
            for start in range(0, int(scored.sum()), self._chunk)
        ]
        if found:
            ids[scored] = torch.cat([one for one, _ in found])
            values[scored] = torch.cat([one for _, one in found]).to(values.dtype)
        return ids, values

    def _parts(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """The sum over scored tokens of the whole loss, and of each part."""
        objective = self.objective
        targets = batch.targets()
        scored = targets != IGNORE
        taught = self._taught(batch)
        terms: dict[str, _Term] = {}
        if objective.task_weight:
            terms["task"] = partial(_task, targets[scored], objective.task_weight)
        if objective.kl_weight:
            terms[objective.divergence] = self._divergence(batch, scored, taught)
        parts: dict[str, Any] = {}
        own = see(
            *(self.student, batch, [a for a, _ in self._attention_map], [a for a, _ in self._layer_map]),
            lambda states: self._head(states[scored], terms, parts),
        )
        if self._attention_map:
            place = documents(batch.position_ids)
            far = [
                attention.distance(own.attention[a], taught.attention[b], place, scored, self._heads)
                for a, b in self._attention_map
            ]
            parts["attention"] = objective.attention_weight * sum(far) / len(far)
        if self._layer_map:
            far = [
                hidden.distance(self._projected(n, own.hidden[a][scored]), taught.hidden[b][scored])
                for n, (a, b) in enumerate(self._layer_map)
            ]
            parts["hidden"] = objective.hidden_weight * sum(far) / len(far)
        return own.last + sum(parts[name] for name in ("attention", "hidden") if name in parts), parts

    def _pairs(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """The sum over rows of the refusal balance; it has no other part."""
        targets = batch.targets()
        scored = targets != IGNORE
        weights = self.objective.refusal_weight * token_weights(scored)[scored]
        parts: dict[str, Any] = {}
        terms: dict[str, _Term] = {"refusal": partial(_task, targets[scored], weights)}
        return run(self.student, batch, lambda states: self._head(states[scored], terms, parts)), parts

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types here
    def _taught(self, batch: Batch) -> Seen:
        """The teacher's pass, if any part needs it."""
        logits = self.objective.kl_weight and batch.teacher_ids is None
        if not (logits or self._attention_map or self._layer_map):
            return Seen(None, {}, {})
        if self.teacher is None:
            raise Refused("TEACHER_MISSING", "there is no teacher, and a batch without its top k: give one of them.")
        return see(self.teacher, batch, [b for _, b in self._attention_map], [b for _, b in self._layer_map])

    def _head(self, states: Any, terms: dict[str, _Term], parts: dict[str, Any]) -> Any:
        """The sum of the terms of the vocabulary over tokens; each goes to `parts`."""
        if not terms:
            return states[:0].sum()  # 0, so that every weight has a gradient
        weight, bias = _cut(head(self.student), self.vocabulary)

        def loss_of(logits: Any, rows: slice) -> Any:
            return torch.stack([term(logits, rows).sum() for term in terms.values()])

        total, sums = head_loss(states, weight, bias, loss_of, len(terms), self._chunk)
        parts.update(zip(terms, sums, strict=True))
        return total

    def _projected(self, n: int, states: Any) -> Any:
        return self.projections[n](states) if self.projections else states

    def _divergence(self, batch: Batch, scored: Any, taught: Seen) -> _Term:
        objective, tau = self.objective, self.objective.temperature
        if batch.teacher_ids is not None:
            ids, values = batch.teacher_ids[scored], batch.teacher_log_probabilities[scored]
            return lambda logits, rows: (
                objective.kl_weight * top_k.kl(logits, ids[rows], values[rows].to(logits.dtype), tau)
            )
        distances: dict[str, Callable[..., Any]] = {
            "kl": divergence.kl,
            "reverse_kl": divergence.reverse_kl,
            "jsd": partial(divergence.jsd, beta=objective.jsd_beta),
        }
        far = distances[objective.divergence]
        known = self._teacher_head(taught.last[scored])
        return lambda logits, rows: objective.kl_weight * far(logits, known(rows).to(logits.dtype), tau)

    def _teacher_head(self, states: Any) -> Any:
        """A function that gives the teacher's logits of a chunk."""
        weight, bias = _cut(head(self.teacher), self.vocabulary)
        device = states.device.type
        if torch.is_autocast_enabled(device):
            fast = torch.get_autocast_dtype(device)
            weight, states = weight.to(fast), states.to(fast)
            bias = None if bias is None else bias.to(fast)
        return lambda rows: functional.linear(states[rows], weight, bias).detach()


def _task(targets: Any, weight: Any, logits: Any, rows: slice) -> Any:
    return (weight[rows] if torch.is_tensor(weight) else weight) * cross_entropy(logits, targets[rows])


def _cut(place: Any, vocabulary: int) -> tuple[Any, Any]:
    """Weight and bias of a head, whole, without its padding."""
    weight = whole(place.weight)
    bias = None if place.bias is None else whole(place.bias)
    if weight.shape[0] == vocabulary:
        return weight, bias
    return weight[:vocabulary], None if bias is None else bias[:vocabulary]
