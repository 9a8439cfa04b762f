"""Questions, greedy answers to several of them at once, and the judge by likelihood: each against doing it one by one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from services.distiller.data.corpus import scan
from services.distiller.data.record import read
from services.distiller.report.answers import Answer, answers
from services.distiller.report.judge import LOST, TIED, WON, Battle, Verdict
from services.distiller.report.likelihood import MARGIN_NATS, LikelihoodJudge, compared
from services.distiller.report.questions import Question, ask, held_out
from tests.distiller import tiny

END = 256


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny.tokenizer()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.teacher().eval().requires_grad_(False)


def one_by_one(model: Any, question: Question, most: int) -> list[int]:
    """Greedy, without a cache, padding or neighbours."""
    ids = list(question.ids)
    for _ in range(most):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == END:
            break
    return ids[len(question.ids) :]


def test_answers_of_a_batch_are_those_of_each_question_alone(model: Any, tokenizer: Any) -> None:
    questions = [ask(text, tokenizer) for text in ("1+1?", "What is the sum of one and one, and why?", "x")]
    made = answers(model, questions, tokenizer, [END], 257, 12)
    for question, answer in zip(questions, made, strict=True):
        alone = one_by_one(model, question, 12)
        assert answer.ended == (alone[-1] == END)
        said = alone[:-1] if answer.ended else alone
        assert (answer.text, answer.tokens) == (tokenizer.decode(said, skip_special_tokens=True), len(said))


def test_settings_that_a_model_brings_change_no_answer(model: Any, tokenizer: Any) -> None:
    question = ask("1+1?", tokenizer)
    plain = answers(model, [question], tokenizer, [END], 257, 12)
    own = GenerationConfig(repetition_penalty=1e6, min_new_tokens=12, do_sample=True, temperature=50.0)
    model.generation_config, before = own, model.generation_config
    try:
        assert answers(model, [question], tokenizer, [END], 257, 12) == plain
        assert model.generation_config is own, "and they stay its own"
    finally:
        model.generation_config = before


def test_an_answer_ends_at_a_token_that_ends_a_turn_and_has_no_more_than_its_tokens(model: Any, tokenizer: Any) -> None:
    question = ask("1+1?", tokenizer)
    whole = one_by_one(model, question, 8)
    (cut,) = answers(model, [question], tokenizer, [whole[3]], 257, 8)
    assert cut.ended
    assert cut.tokens == whole.index(whole[3])
    (short,) = answers(model, [question], tokenizer, [END], 257, 2)
    assert (short.tokens, short.ended) == (2, False)


class Enough(Exception):
    """Plays a job that is stopped."""


def test_a_stop_waits_for_no_more_than_a_token(model: Any, tokenizer: Any) -> None:
    tokens = 0

    def check() -> None:
        nonlocal tokens
        tokens += 1
        if tokens == 3:
            raise Enough

    with pytest.raises(Enough):
        answers(model, [ask("1+1?", tokenizer)], tokenizer, [END], 257, 50, check)
    assert tokens == 3


def test_questions_are_held_out_end_with_the_user_and_are_the_same_each_time(tmp_path: Path, tokenizer: Any) -> None:
    records = tiny.conversations(60)
    unasked = [{"text": "no question"}, {"messages": [{"role": "assistant", "content": "I begin"}]}]
    corpus = scan(tiny.write(tmp_path / "c.jsonl", [*records, *unasked]), 0.5, 3)
    found = held_out(corpus, tokenizer, 8, 3, 1000)
    assert found == held_out(corpus, tokenizer, 8, 3, 1000) != held_out(corpus, tokenizer, 8, 4, 1000)
    held = [read(corpus.line(int(offset))) for offset in corpus.held_out]
    for question in found:
        assert question.messages[-1]["role"] == "user"
        assert any(record.messages[: len(question.messages)] == question.messages for record in held)
        assert tokenizer.decode(list(question.ids)).endswith(f"{question.asked}<|end|>\n<|start|>assistant\n")
    everything = held_out(corpus, tokenizer, 1000, 3, 1000)
    assert len(everything) == sum(bool(record.messages) and record.messages[0]["role"] == "user" for record in held)
    longest = max(len(question.ids) for question in everything)
    assert 0 < len(held_out(corpus, tokenizer, 1000, 3, longest - 1)) < len(everything)


def test_the_mean_of_an_answer_is_that_of_its_tokens_one_by_one(model: Any, tokenizer: Any) -> None:
    question = ask("1+1?", tokenizer)
    judge = LikelihoodJudge(model, tokenizer, [tokenizer.eos_token_id])
    ids = [*question.ids, *tokenizer("two")["input_ids"], END]
    logs = [
        float(model(torch.tensor([ids[:place]])).logits[0, -1].log_softmax(-1)[ids[place]])
        for place in range(len(question.ids), len(ids))
    ]
    assert judge.mean(question, Answer("two", 3, True)) == pytest.approx(sum(logs) / 4, abs=1e-4)
    assert judge.mean(question, Answer("two", 3, False)) == pytest.approx(sum(logs[:-1]) / 3, abs=1e-4)
    after = model(torch.tensor([ids[:-1]])).logits[0, -1].log_softmax(-1)
    either = LikelihoodJudge(model, tokenizer, [END, int(after.argmax())])  # another token ends turns there, too
    assert either.mean(question, Answer("two", 3, True)) == pytest.approx(
        (sum(logs[:-1]) + float(after.max())) / 4, abs=1e-4
    )


def test_the_likelier_answer_wins_whatever_its_place_and_one_without_words_loses(model: Any, tokenizer: Any) -> None:
    question = ask("1+1?", tokenizer)
    (own,) = answers(model, [question], tokenizer, [END], 257, 12)
    other, nothing = Answer("ZZZZ", 4, True), Answer("", 0, True)
    pairs = [(own, other), (other, own), (own, own), (nothing, other), (nothing, nothing)]
    verdicts = LikelihoodJudge(model, tokenizer, [tokenizer.eos_token_id]).judge(
        [Battle(question, one, two) for one, two in pairs]
    )
    first = verdicts[0].score
    assert [one.score for one in verdicts] == [first, 1 - first, TIED, LOST, TIED]
    assert first in (WON, LOST)


def test_means_within_the_margin_are_a_tie() -> None:
    assert compared(-1, -1 - 0.9 * MARGIN_NATS).score == TIED
    assert compared(-1, -1 - 1.1 * MARGIN_NATS).score == WON
    assert compared(-math.inf, -1).score == LOST


def test_a_question_that_the_judges_template_does_not_take_is_a_tie_that_is_counted(model: Any) -> None:
    strict = tiny.tokenizer()
    strict.chat_template = "{{ raise_exception('no') }}"
    battle = Battle(ask("1+1?", tiny.tokenizer()), Answer("2", 1, True), Answer("3", 1, True))
    assert LikelihoodJudge(model, strict, [strict.eos_token_id]).judge([battle]) == [Verdict(TIED, unreadable=True)]


def test_an_answer_that_is_too_long_for_the_judge_is_a_tie_that_is_counted(model: Any, tokenizer: Any) -> None:
    longest = model.config.max_position_embeddings
    battle = Battle(ask("1+1?", tokenizer), Answer("x" * longest, longest, False), Answer("3", 1, True))
    assert LikelihoodJudge(model, tokenizer, [tokenizer.eos_token_id]).judge([battle]) == [
        Verdict(TIED, unreadable=True)
    ]
