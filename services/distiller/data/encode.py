"""From a record to tokens, each scored or not.

Scored is what the assistant says, with the token that ends its turn; prompts only where that is asked for; what tools returned
never, for the model does not write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

from services.distiller.data.record import Record

MASKED = -100
TEMPLATE_ERRORS = (TemplateError, TypeError, LookupError, ValueError, ArithmeticError, RecursionError)
"""What a chat template may raise, of itself or for a conversation that it does not take."""
Span = tuple[int, int]


@dataclass(frozen=True)
class Document:
    """Tokens that see each other and no others.

    Attributes:
        ids: the tokens.
        labels: the same where a token is scored, −100 elsewhere; the first is never scored, for nothing precedes it.
        whole: a conversation, of which no part behind its beginning stands alone: an answer without its question teaches
            nothing. A text may go on anywhere.
    """

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    whole: bool = True

    @property
    def scored(self) -> int:
        return sum(label != MASKED for label in self.labels)

    def pieces(self, tokens: int) -> list[Document]:
        """The document in pieces of at most so many tokens, without those in which nothing is scored.

        A text is cut into as many as it takes; of a conversation what is beyond the first is left out.
        """
        cuts = range(0, min(tokens, len(self.ids)) if self.whole else len(self.ids), tokens)
        made = [_document(self.ids[cut : cut + tokens], self.labels[cut : cut + tokens], self.whole) for cut in cuts]
        return [piece for piece in made if piece.scored]


class Untemplated(ValueError):
    """The chat template does not take this conversation."""


class Encoder:
    """Encodes as a tokenizer and its chat template say.

    Args: ends: tokens that end a turn.
    """

    def __init__(self, tokenizer: Any, ends: Iterable[int], score_prompts: bool = False) -> None:
        self._tokenizer = tokenizer
        self._ends = frozenset(ends)
        self._score_prompts = score_prompts

    def encode(self, record: Record) -> list[Document]:
        """The documents of a record: one, or one for each answer where the template writes earlier turns otherwise later on.

        Raises: Untemplated.
        """
        if not record.messages:
            return [self._text(record.text)] if record.text else []
        try:
            whole = self._render(record, len(record.messages))
            spans = self._spans(record, whole)
            if spans is not None:
                return [self._conversation(whole, spans)]
            return self._answers(record)
        except Untemplated:
            raise
        except TEMPLATE_ERRORS as error:
            raise Untemplated(str(error)) from error

    def _text(self, text: str) -> Document:
        ids = list(self._tokenizer(text)["input_ids"])
        end = self._tokenizer.eos_token_id
        if end is not None and ids[-1:] != [end]:
            ids.append(end)
        return _document(ids, ids, whole=False)

    def _render(self, record: Record, count: int, answer_next: bool = False) -> str:
        """The first `count` messages as text; `answer_next`: up to where the assistant begins to speak."""
        text: str = self._tokenizer.apply_chat_template(
            list(record.messages[:count]),
            tools=list(record.tools) or None,
            tokenize=False,
            add_generation_prompt=answer_next,
        )
        return text

    def _spans(self, record: Record, whole: str) -> list[Span] | None:
        """Where in `whole` each assistant's answer is (with score_prompts: each message that no tool returned). None: what the
        first messages give is not how the whole begins. Words that an assistant begins with answer nothing."""
        role = [message["role"] for message in record.messages]
        spans: list[Span] = []
        end = 0
        for index, who in enumerate(role):
            if self._score_prompts:
                before = end
            elif who == "assistant" and index:
                prompt = self._render(record, index, answer_next=True)
                before = len(prompt)
                if not whole.startswith(prompt):
                    return None
            else:
                continue
            until = self._render(record, index + 1)
            if not whole.startswith(until):
                return None
            end = len(until)
            if who != "tool":
                spans.append((before, end))
        return spans

    def _answers(self, record: Record) -> list[Document]:
        """Each answer with all that was before it, as it looked at that time."""
        documents = []
        for index, message in enumerate(record.messages):
            if message["role"] != "assistant" or not index:
                continue
            prompt = self._render(record, index, answer_next=True)
            until = self._render(record, index + 1)
            if not until.startswith(prompt):  # the answer's first words are part of the template's prompt
                prompt = self._render(record, index)
                if not until.startswith(prompt):
                    raise Untemplated("it writes a question otherwise once it is answered")
            documents.append(self._conversation(until, [(len(prompt), len(until))]))
        return documents

    def _conversation(self, text: str, spans: list[Span]) -> Document:
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids: list[int] = encoded["input_ids"]
        labels = [MASKED] * len(ids)
        starts = [start for start, _ in encoded["offset_mapping"]]
        for begin, end in spans:
            inside = [place for place, start in enumerate(starts) if begin <= start < end]
            if not self._score_prompts:
                inside = self._to_the_end_of_turn(inside, ids)
            for place in inside:
                labels[place] = ids[place]
        return _document(ids, labels)

    def _to_the_end_of_turn(self, places: list[int], ids: list[int]) -> list[int]:
        """Without what the template puts behind the token that ends the turn."""
        ends = [count for count, place in enumerate(places) if ids[place] in self._ends]
        return places[: ends[-1] + 1] if ends else places


def _document(ids: Sequence[int], labels: Sequence[int], whole: bool = True) -> Document:
    return Document(tuple(ids), (MASKED, *labels[1:]) if labels else (), whole)
