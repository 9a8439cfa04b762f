"""What is refused before the first step, each time with what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from services.distiller.objective import checks
from services.distiller.objective.distillation import Distillation
from services.distiller.refused import Refused
from services.distiller.spec import Objective
from tests.distiller.objective.tiny import model


def tokenizer(words: list[str], by_space: bool = True) -> Any:
    inner = Tokenizer(models.WordLevel({word: at for at, word in enumerate(["?", *words])}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if by_space else pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def reason(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(Refused) as refused:
        call(*arguments, **options)
    assert refused.value.message == str(refused.value)
    return refused.value.reason


def test_padding_behind_the_tokens_is_left_out_and_said() -> None:
    student, teacher = model(vocab_size=64), model(vocab_size=72)
    assert checks.vocabulary(student, teacher, 60) == 64
    assert checks.vocabulary(teacher, student, 64) == 64
    assert "from 64 on are padding" in str(checks.sliced(student, teacher))
    assert checks.sliced(student, model(vocab_size=64)) is None


def test_vocabularies_that_differ_are_refused() -> None:
    student, teacher = model(vocab_size=64), model(vocab_size=72)
    assert reason(checks.vocabulary, student, teacher) == "VOCABULARY_MISMATCH"
    assert reason(checks.vocabulary, student, teacher, 65) == "VOCABULARY_MISMATCH"
    assert reason(checks.vocabulary, teacher, student, 65) == "VOCABULARY_MISMATCH"
    assert reason(Distillation, student, teacher, Objective()) == "VOCABULARY_MISMATCH"
    assert Distillation(student, teacher, Objective(), vocabulary=64).vocabulary == 64


def test_tokenizers_that_differ_are_refused() -> None:
    words = ["The", "quick", "brown", "fox"]
    checks.tokenizers(tokenizer(words), tokenizer(words))
    assert reason(checks.tokenizers, tokenizer(words), tokenizer(words[::-1])) == "TOKENIZER_MISMATCH"
    assert reason(checks.tokenizers, tokenizer(words), tokenizer(words[:3])) == "TOKENIZER_MISMATCH"


def test_tokenizers_of_one_vocabulary_that_split_differently_are_refused() -> None:
    words = ["fox", ",", "fox,"]
    assert reason(checks.tokenizers, tokenizer(words), tokenizer(words, by_space=False)) == "TOKENIZER_MISMATCH"


def test_a_layer_that_is_not_there_is_refused() -> None:
    student, teacher = model(layers=1), model(layers=3)
    attention, hidden = Objective(), Objective(hidden_weight=1.0)
    assert reason(Distillation, student, teacher, attention, attention_map=((0, 3),)) == "LAYERS_MISMATCH"
    assert reason(Distillation, student, teacher, hidden, ((1, 2),)) == "LAYERS_MISMATCH"


def test_by_itself_each_layer_is_compared_with_the_one_at_its_share_of_the_depth() -> None:
    assert checks.hidden(model(layers=2), model(layers=6), None) == ((0, 2), (1, 5))
    assert checks.hidden(model(layers=3), model(layers=3), None) == ((0, 0), (1, 1), (2, 2))
    assert checks.hidden(model(layers=3), model(layers=2), None) == ((0, 0), (1, 0), (2, 1))


def test_attention_that_cannot_be_mapped_is_refused() -> None:
    other = model()
    del other.model.layers[1].self_attn
    assert reason(Distillation, other, model(), Objective()) == "ATTENTION_UNSUPPORTED"
    Distillation(other, model(), Objective(attention_weight=0.0))


def test_a_model_of_another_build_is_refused() -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=61, n_positions=8))
    assert reason(Distillation, gpt2, model(), Objective()) == "MODEL_UNSUPPORTED"
    scaling = model()
    scaling.config.final_logit_softcapping = 30.0
    assert reason(Distillation, scaling, model(), Objective()) == "MODEL_UNSUPPORTED"
    headless = model().model
    assert reason(Distillation, headless, model(), Objective()) == "MODEL_UNSUPPORTED"


def test_what_needs_the_teacher_is_refused_without_it() -> None:
    assert reason(Distillation, model(), None, Objective()) == "TEACHER_MISSING"
    assert reason(Distillation, model(), None, Objective(attention_weight=0.0, hidden_weight=1.0)) == "TEACHER_MISSING"
    assert torch.is_tensor(next(Distillation(model(), None, Objective(attention_weight=0.0)).parameters()))
