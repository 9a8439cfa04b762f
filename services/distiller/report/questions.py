"""Questions for both models: held-out conversations up to the last thing that the user says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from services.distiller.data.corpus import Corpus
from services.distiller.data.encode import TEMPLATE_ERRORS
from services.distiller.data.record import Record, read


@dataclass(frozen=True)
class Question:
    """A conversation that the assistant speaks next in.

    Attributes:
        messages, tools: the conversation; its last message is the user's.
        ids: the same as tokens of the models that are measured, up to where the answer begins.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    ids: tuple[int, ...]

    @property
    def asked(self) -> str:
        """What the user says last."""
        return str(self.messages[-1]["content"])


def held_out(corpus: Corpus, tokenizer: Any, count: int, seed: int, longest: int) -> list[Question]:
    """At most `count` questions, drawn from the held-out records by the seed: always the same ones.

    Records without a user's turn are passed over, and so are questions of more than `longest` tokens.
    """
    return list(islice(_drawn(corpus, tokenizer, seed, longest), count))


def ask(text: str, tokenizer: Any) -> Question:
    """A question without anything before it."""
    record = Record(messages=({"role": "user", "content": text},))
    return Question(record.messages, (), encoded(record, tokenizer))


def encoded(record: Record, tokenizer: Any) -> tuple[int, ...]:
    """The conversation as tokens, up to where the assistant begins to speak."""
    text = tokenizer.apply_chat_template(
        list(record.messages), tools=list(record.tools) or None, tokenize=False, add_generation_prompt=True
    )
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _drawn(corpus: Corpus, tokenizer: Any, seed: int, longest: int) -> Iterator[Question]:
    for offset in corpus.drawn(seed):
        record = corpus.record(int(offset), read)
        asked = _asked(record.messages)
        if not asked:
            continue
        asking = Record(messages=asked, tools=record.tools)
        try:
            ids = encoded(asking, tokenizer)
        except TEMPLATE_ERRORS:  # the template does not take it
            continue
        if 0 < len(ids) <= longest:
            yield Question(asked, record.tools, ids)


def _asked(messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    last = max((place for place, one in enumerate(messages) if one["role"] == "user"), default=-1)
    return tuple(messages[: last + 1])
