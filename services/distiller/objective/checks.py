"""What must hold between teacher and student before the first step."""

from __future__ import annotations

from typing import Any

from services.distiller.layers import head, layers
from services.distiller.objective.kept import attention_of
from services.distiller.refused import Refused

LayerMap = tuple[tuple[int, int], ...]
"""Pairs of a student's layer and the teacher's layer that it is compared with, from 0."""

_PROBES = ("The quick brown fox, 1,234.5 km from Zürich.\n", "def f(x):\n\treturn x**2  # ½ × 日本語 🙂", " a  b   c")


def vocabulary(student: Any, teacher: Any, tokens: int | None = None) -> int:
    """How many logits of each model are compared: all, or where one model has more padding, as many as the other has.

    Args: teacher: None: the student's logits; tokens: length of the tokenizer that both share; None: not known: nothing may be
    left out. Raises: Refused: one model has fewer logits than there are tokens, or they differ and `tokens` is None.
    """
    sizes: dict[str, int] = {
        name: head(model).weight.shape[0]
        for name, model in (("student", student), ("teacher", teacher))
        if model is not None
    }
    who = min(sizes, key=lambda name: sizes[name])
    if tokens is not None and sizes[who] < tokens:
        raise Refused(
            "VOCABULARY_MISMATCH",
            f"the {who} has {sizes[who]} logits, but the tokenizer has {tokens} tokens: choose models of one vocabulary.",
        )
    if tokens is None and len(set(sizes.values())) > 1:
        raise Refused(
            "VOCABULARY_MISMATCH",
            f"the student has {sizes['student']} logits and the teacher {sizes['teacher']}: choose models of one vocabulary.",
        )
    return sizes[who]


def sliced(student: Any, teacher: Any) -> str | None:
    """A sentence for the log where one model's padding is left out; None where the sizes are the same."""
    sizes = head(student).weight.shape[0], head(teacher).weight.shape[0]
    if sizes[0] == sizes[1]:
        return None
    return f"Logits from {min(sizes)} on are padding ({sizes[0]} of the student, {sizes[1]} of the teacher) and are left out."


def tokenizers(student: Any, teacher: Any) -> None:
    """Both give every text the same ids.

    Raises: Refused: their vocabularies differ, or what they make of some texts.
    """
    one, other = student.get_vocab(), teacher.get_vocab()
    if one != other:
        differ = sum(one.get(token) != other.get(token) for token in one.keys() | other.keys())
        raise Refused(
            "TOKENIZER_MISMATCH",
            f"{differ} tokens are others in the student's tokenizer than in the teacher's: choose models of one family.",
        )
    for text in _PROBES:
        if student.encode(text) != teacher.encode(text):
            raise Refused(
                "TOKENIZER_MISMATCH",
                "the student's and the teacher's tokenizer split text differently: choose models of one family.",
            )


def attention(student: Any, teacher: Any, pairs: LayerMap) -> LayerMap:
    """The pairs, from 0 on (−1 is the last layer), if the maps of all these layers can be made.

    Raises: Refused: not of all.
    """
    pairs = _placed(student, teacher, pairs)
    for one, other in pairs:
        attention_of(student, one)
        attention_of(teacher, other)
    return pairs


def hidden(student: Any, teacher: Any, pairs: LayerMap | None) -> LayerMap:
    """The pairs, from 0 on (−1 is the last layer). None: each student layer with the teacher's at the same share of the depth.

    Raises: Refused: a layer is not there.
    """
    if pairs is not None or teacher is None:
        return _placed(student, teacher, pairs or ())
    few, many = len(layers(student)), len(layers(teacher))
    return tuple((n, max((n + 1) * many // few - 1, 0)) for n in range(few))


def _placed(student: Any, teacher: Any, pairs: LayerMap) -> LayerMap:
    if teacher is None:
        raise Refused(
            "TEACHER_MISSING", "attention maps and hidden states need the teacher: give it, or set their weights to 0."
        )
    counts = len(layers(student)), len(layers(teacher))
    for pair in pairs:
        for name, index, count in zip(("student", "teacher"), pair, counts, strict=True):
            if not -count <= index < count:
                raise Refused(
                    "LAYERS_MISMATCH",
                    f"the {name} has {count} layers, but layer {index} is mapped: give 0 to {count - 1}.",
                )
    return tuple((one % counts[0], other % counts[1]) for one, other in pairs)
