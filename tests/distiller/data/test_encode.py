"""What of a record is scored."""

from __future__ import annotations

from typing import Any

import pytest

from services.distiller.data.encode import MASKED, Document, Encoder, Untemplated
from services.distiller.data.record import Record
from tests.distiller import tiny

TALK = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Größe?"},
    {"role": "assistant", "content": "Ja: 5 €."},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "42"},
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny.tokenizer()


def encoder(tokenizer: Any, **options: Any) -> Encoder:
    return Encoder(tokenizer, [tokenizer.eos_token_id], **options)


def scored(tokenizer: Any, document: Document) -> str:
    """The scored text, with a bar where something between was not."""
    runs: list[list[int]] = [[]]
    for token, label in zip(document.ids, document.labels, strict=True):
        if label == MASKED:
            runs.append([])
        else:
            assert label == token
            runs[-1].append(token)
    return "|".join(tokenizer.decode(run) for run in runs if run)


def test_only_answers_are_scored_each_with_the_token_that_ends_it(tokenizer: Any) -> None:
    (document,) = encoder(tokenizer).encode(Record(messages=TALK))
    assert tokenizer.decode(document.ids) == tokenizer.apply_chat_template(list(TALK), tokenize=False)
    assert scored(tokenizer, document) == "Ja: 5 €.<|end|>|42<|end|>"


def test_prompts_are_scored_where_that_is_asked_for_but_never_what_a_tool_returned(tokenizer: Any) -> None:
    (document,) = encoder(tokenizer, score_prompts=True).encode(Record(messages=TALK))
    text = scored(tokenizer, document)
    assert "Be brief." in text
    assert "Größe?" in text
    assert "tool" not in text
    assert text.count("42") == 1


def test_of_a_text_all_but_the_first_token_is_scored_and_its_end_too(tokenizer: Any) -> None:
    (document,) = encoder(tokenizer).encode(Record(text="abc"))
    assert tokenizer.decode(document.ids) == "abc<|end|>"
    assert document.labels == (MASKED, *document.ids[1:])


def test_a_record_without_an_answer_has_nothing_scored(tokenizer: Any) -> None:
    (document,) = encoder(tokenizer).encode(Record(messages=TALK[:2]))
    assert document.scored == 0
    assert document.pieces(8) == []
    assert encoder(tokenizer).encode(Record()) == []


def test_a_template_that_rewrites_earlier_turns_gives_each_answer_a_document_of_its_own() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = (  # only the last answer keeps its thoughts
        "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
        "{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
    )
    one, other = encoder(tokenizer).encode(Record(messages=TALK))
    assert scored(tokenizer, one) == "<think></think>Ja: 5 €.<|end|>"
    assert scored(tokenizer, other) == "<think></think>42<|end|>"
    assert tokenizer.decode(other.ids).startswith("<|start|>system\nBe brief.")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "alternate"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_conversation_that_the_template_refuses_is_said_to_be_so(template: str, why: str) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(Untemplated, match=why):
        encoder(tokenizer).encode(Record(messages=TALK))


@pytest.mark.parametrize("rewrites", [False, True])
def test_words_that_an_assistant_begins_with_are_read_and_not_scored(rewrites: bool) -> None:
    tokenizer = tiny.tokenizer()
    if rewrites:
        tokenizer.chat_template = tiny.TEMPLATE.replace(
            "{{ message.content }}",
            "{{ message.content }}{% if loop.last and loop.index is odd %}{{ loop.index }}{% endif %}",
        )
    greeting = ({"role": "assistant", "content": "Welcome."}, *TALK[1:3])
    (document,) = encoder(tokenizer).encode(Record(messages=greeting))
    assert tokenizer.decode(document.ids).startswith("<|start|>assistant\nWelcome.")
    assert scored(tokenizer, document).startswith("Ja: 5 €.")
    assert sum(one.scored for one in encoder(tokenizer).encode(Record(messages=greeting[:1]))) == 0


def test_a_template_that_rewrites_even_the_question_is_said_to_be_so() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = tiny.TEMPLATE.replace("{{ message.content }}", "{{ message.content }}{{ loop.last }}")
    with pytest.raises(Untemplated, match="question"):
        encoder(tokenizer).encode(Record(messages=TALK))


def test_pieces_of_a_long_text_are_those_with_something_to_score() -> None:
    labels = (MASKED, MASKED, 3, MASKED, MASKED, MASKED, 7, 8)
    document = Document(tuple(range(1, 9)), labels, whole=False)
    assert document.pieces(3) == [
        Document((1, 2, 3), (MASKED, MASKED, 3), whole=False),
        Document((7, 8), (MASKED, 8), whole=False),  # a first token has nothing before it
    ]


def test_of_a_long_conversation_no_answer_is_learned_without_its_question() -> None:
    record = Record(messages=({"role": "user", "content": "x" * 50}, {"role": "assistant", "content": "y" * 50}))
    (document,) = encoder(tiny.tokenizer()).encode(record)
    first = next(place for place, label in enumerate(document.labels) if label != MASKED)
    assert document.pieces(first) == []
    (cut,) = document.pieces(first + 3)
    assert cut.ids == document.ids[: first + 3] and cut.scored == 3
    assert document.pieces(1000) == [document]
