"""How far two image encoders agree on the same pictures: in the classes that they tell, and in what they find alike.

Retrieval: each picture asks for its nearest among the others, by the cosine of the features' mean over patches. `retrieval` is
the share of the teacher's nearest `NEAREST` that the student finds too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional

from services.distiller.data.images import NO_LABEL
from services.distiller.objective.images import ImageBatch, see

NEAREST = 10
MOST_PICTURES = 5000
"""So many ask, at most: the table of similarities has as many rows and columns."""


@torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
def measure(student: Any, teacher: Any, batches: Iterable[ImageBatch]) -> dict[str, float]:
    """Figures of a student beside its teacher.

    Keys: pictures, retrieval; where both tell classes: top1 (the same likeliest class), kl (nats a picture, of the classes);
    where labels are known too: accuracy, accuracy_teacher.
    """
    found: dict[str, list[Any]] = {"student": [], "teacher": [], "own": [], "taught": [], "labels": []}
    for batch in batches:
        one, other = see(student, batch), see(teacher, batch)
        for name, seen in (("student", one), ("teacher", other)):
            found[name].append(functional.normalize(seen.features.float().mean(1), dim=-1).cpu())
        if one.classes is not None and other.classes is not None:
            found["own"].append(one.classes.float().log_softmax(-1).cpu())
            found["taught"].append(other.classes.float().log_softmax(-1).cpu())
            found["labels"].append(batch.labels.cpu())
    near = retrieval(torch.cat(found["student"]), torch.cat(found["teacher"]))
    figures = {"pictures": float(sum(map(len, found["student"]))), "retrieval": near}
    return {
        **figures,
        **(_classes(*(torch.cat(found[name]) for name in ("own", "taught", "labels"))) if found["own"] else {}),
    }


def retrieval(student: Any, teacher: Any, nearest: int = NEAREST) -> float:
    """The share of the nearest that both find. Args: student, teacher: [pictures, width each], of length 1."""
    nearest = min(nearest, len(student) - 1)
    if nearest < 1:
        return 1.0
    one, other = (_nearest(vectors, nearest) for vectors in (student, teacher))
    return float((one[:, :, None] == other[:, None, :]).any(-1).float().mean())


def _nearest(vectors: Any, count: int) -> Any:
    return (vectors @ vectors.T).fill_diagonal_(-2.0).topk(count).indices


def _classes(own: Any, taught: Any, labels: Any) -> dict[str, float]:
    said, wanted = own.argmax(-1), taught.argmax(-1)
    figures = {
        "top1": float((said == wanted).float().mean()),
        "kl": float((taught.exp() * (taught - own)).sum(-1).mean()),
    }
    known = labels != NO_LABEL
    if known.any():
        figures["accuracy"] = float((said[known] == labels[known]).float().mean())
        figures["accuracy_teacher"] = float((wanted[known] == labels[known]).float().mean())
    return figures
