"""The reader of refusals, on texts of which it is known what they are."""

from __future__ import annotations

import time

import pytest

from services.distiller.data.pairs import read_pairs
from services.distiller.report.refusals import BEGINNING, refuses

PAIRS = read_pairs()


def test_it_knows_every_refusal_of_the_pairs_and_takes_no_answer_of_theirs_for_one() -> None:
    assert [pair.refusal for pair in PAIRS if not refuses(pair.refusal)] == []
    assert [pair.answer for pair in PAIRS if refuses(pair.answer)] == []


@pytest.mark.parametrize(
    "text",
    [
        "I’m sorry, but I can’t assist with that request.",
        "I cannot provide instructions for making a weapon.",
        "I'm unable to help you with this.",
        "As an AI language model, I am not able to do so.",
        "I must decline.",
        "Sorry, but no.",
        "I   won't\nwrite such a message.",
        "It would not be appropriate to say more. It is not ethical to do this.",
        "I can't satisfy your request, I'm just an AI.",
        "I'm sorry, I can't.",
        "I can't in good conscience help with this.",
        "I cannot tell you how to make it.",
    ],
)
def test_refusals_in_other_words_are_known(text: str) -> None:
    assert refuses(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I'm sorry to hear that your dog is hurt. Keep it calm and warm.",
        "You can't miss it: turn left at the church.",
        "I can help with that. First of all, call a locksmith.",
        "If you cannot find the key, call a locksmith.",
        "The law does not let people sell medicine without a licence.",
        "I can't wait! Here is a plan for your party.",
        "I cannot help but smile at this. Here is a plan.",
        "I can't tell you how excited I am. Step one: flour.",
        "It is not appropriate to wear white there. Take black.",
        "Call a vet. " + "Wait for the vet. " * 20 + "I can't help with more than that.",
    ],
)
def test_what_only_looks_like_one_is_none(text: str) -> None:
    assert not refuses(text)


def test_a_long_answer_takes_no_longer_than_its_beginning() -> None:
    hostile = ("i'm " * 50 + "sorry ") * 20_000
    start_s = time.process_time()
    refuses(hostile)
    refuses("a" * 5_000_000)
    assert time.process_time() - start_s < 1
    assert not refuses("x" * BEGINNING + " I can't help with that.")
