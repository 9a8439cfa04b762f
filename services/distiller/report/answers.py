"""Greedy answers of a model to several questions at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from services.distiller.generate import generate
from services.distiller.report.questions import Question


@dataclass(frozen=True)
class Answer:
    """What a model says. `ended`: it ended its turn itself, within the tokens that it had."""

    text: str
    tokens: int
    ended: bool

    def row(self) -> dict[str, Any]:
        return asdict(self)


@torch.inference_mode()  # type: ignore[untyped-decorator]  # torch has no types here
def answers(
    model: Any,
    questions: Sequence[Question],
    tokenizer: Any,
    ends: Sequence[int],
    padding: int,
    most_tokens: int,
    check: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """The likeliest token each time, until one of `ends` or `most_tokens`.

    Args: check: called after each token; may raise to give up.
    """

    def goes_on(ids: Any, scores: Any, **_: Any) -> Any:
        check()
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    prompts = [one.ids for one in questions]
    made = generate(model, prompts, most_tokens, ends, padding, stopping_criteria=[goes_on])
    return [_answer(row, tokenizer, ends) for row in made]


def _answer(ids: list[int], tokenizer: Any, ends: Sequence[int]) -> Answer:
    end = next((place for place, token in enumerate(ids) if token in ends), None)
    said = ids if end is None else ids[:end]
    return Answer(tokenizer.decode(said, skip_special_tokens=True), len(said), end is not None)
