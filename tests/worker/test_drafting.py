"""A draft changes how fast an answer comes, never the answer; and one that loses time is left out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from services.worker.engine import Sampling
from services.worker.engines.batching import Batch, Draft, Sequence
from services.worker.engines.cache import Reader
from services.worker.engines.drafting import DRAFTED_ROUNDS, FIRST_PAUSE, Governor

SLOTS, CONTEXT, VOCABULARY = 3, 40, 61


def network(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,  # logits far enough apart that no arithmetic ties them
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


MODEL = network(0)
CLOSE = network(0)  # of the model's mind at most places
with torch.no_grad():
    CLOSE.lm_head.weight.add_(0.15 * torch.randn(VOCABULARY, 32, generator=torch.Generator().manual_seed(5)))
DRAFTS = {"itself": network(0), "close": CLOSE, "stranger": network(1)}


def reader(of: LlamaForCausalLM) -> Reader:
    return Reader(of, 2, SLOTS, CONTEXT)


def batch(draft: Draft | None = None, clock: Callable[[], float] = lambda: 0.0) -> Batch:
    made = Batch(reader(MODEL), SLOTS, CONTEXT, draft, clock)
    made.prefill_tokens = 7  # so that prompts are read in parts
    return made


def request(number: int) -> Sequence:
    """Prompts of 1 to 20 tokens, greedy and sampled, to the end of the context or not."""
    rng = random.Random(number)
    prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))]
    limit = min(len(prompt) + rng.choice([1, 2, 9, CONTEXT]), CONTEXT)
    return Sequence(prompt, len(prompt), Sampling(temperature=rng.choice([0.0, 0.8]), seed=number), limit)


def alone(number: int) -> list[int]:
    """What the model answers, read anew for each token: no cache, no company, no draft."""
    sequence, made = request(number), batch()
    made.add(sequence)
    while len(sequence.tokens) < sequence.limit:
        fresh = Sequence(list(sequence.tokens), sequence.prompt_length, sequence.sampling, sequence.limit)
        one = batch()
        one.add(fresh)
        while not one.step():
            pass
        sequence.tokens.append(fresh.tokens[-1])
    return sequence.tokens


def run(made: Batch, numbers: list[int]) -> dict[int, list[int]]:
    """All of those requests through one batch, each as soon as there is room for it."""
    waiting = list(numbers)
    running: dict[Sequence, int] = {}
    done: dict[int, list[int]] = {}
    while waiting or running:
        while waiting and len(made) < SLOTS:
            number = waiting.pop(0)
            sequence = request(number)
            running[sequence] = number
            made.add(sequence)
        for step in made.step():
            assert step.sequence.tokens[step.length - 1] == step.token
        for sequence in [one for one in running if len(one.tokens) >= one.limit]:
            assert len(sequence.tokens) == sequence.limit
            made.remove(sequence)
            done[running.pop(sequence)] = sequence.tokens
    return done


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("tokens", [1, 3, 5])
@settings(max_examples=6)
@given(numbers=st.lists(st.integers(0, 60), min_size=1, max_size=7, unique=True))
def test_answers_with_a_draft_are_those_without_in_any_company(draft: str, tokens: int, numbers: list[int]) -> None:
    drafting = Draft(reader(DRAFTS[draft]), tokens)
    assert run(batch(drafting), numbers) == {number: alone(number) for number in numbers}


def test_a_draft_that_is_the_model_is_accepted_whole_and_saves_passes() -> None:
    drafting = Draft(reader(DRAFTS["itself"]), 3)
    made = batch(drafting)
    for temperature in (0.0, 1.0):
        sequence = Sequence([1, 2, 3], 3, Sampling(temperature=temperature, seed=3), 3 + 1 + 4 * 5)
        made.add(sequence)
        rounds = 0
        while len(sequence.tokens) < sequence.limit:
            rounds += bool(made.step())
        made.remove(sequence)
        plain = 2  # of its rounds at most are plain, to know what those take
        assert rounds <= 1 + 5 + plain * 3
    assert drafting.accepted == drafting.drafted > 0


def test_a_strangers_proposals_are_counted_and_mostly_refused() -> None:
    drafting = Draft(reader(DRAFTS["stranger"]), 3)
    run(batch(drafting), list(range(30)))
    assert drafting.drafted > 100
    assert drafting.accepted < drafting.drafted / 4


class Times:
    """Rounds of a governor, each as long as told."""

    def __init__(self, drafted_s: float, gained: float, plain_s: float = 1.0) -> None:
        self.governor = Governor()
        self.drafted_s, self.gained, self.plain_s = drafted_s, gained, plain_s
        self.reading_s = 0.0
        self.rng = random.Random(0)

    def rounds(self, count: int, rows: int = 4) -> int:
        """How many of the next rounds were drafted; one in eight takes ten times as long."""
        drafted = 0
        for _ in range(count):
            wanted = self.governor.wants(rows)
            drafted += wanted
            stumble = 10 if self.rng.random() < 1 / 8 else 1
            took_s = (self.drafted_s if wanted else self.plain_s) * stumble
            reading_s = self.reading_s if wanted else 0.0
            self.governor.took(rows, round(rows * self.gained) if wanted else rows, took_s, wanted, reading_s)
        return drafted


def test_a_draft_that_wins_time_stays() -> None:
    times = Times(drafted_s=1.5, gained=2.5)
    assert times.rounds(2000) > 1900
    assert not times.governor.paused


def test_a_draft_that_loses_time_is_left_out_and_tried_ever_more_rarely() -> None:
    times = Times(drafted_s=2.0, gained=1.5)
    first = times.rounds(FIRST_PAUSE)
    assert first <= 3 * DRAFTED_ROUNDS
    assert times.governor.paused
    assert times.rounds(20_000) < 8 * DRAFTED_ROUNDS


def test_a_draft_comes_back_when_it_pays_again() -> None:
    times = Times(drafted_s=2.0, gained=1.5)
    times.rounds(200)
    times.gained = 3.0
    times.rounds(FIRST_PAUSE)
    assert times.rounds(1000) > 900


def test_a_draft_may_pay_for_few_and_not_for_many() -> None:
    times = Times(drafted_s=1.5, gained=2.5)
    times.rounds(200, rows=1)
    times.drafted_s = 4.0
    times.rounds(200, rows=16)
    assert not times.governor.wants(16)
    times.drafted_s = 1.5
    assert times.rounds(200, rows=1) > 190


def test_a_draft_whose_prompts_cost_more_than_it_brings_is_left_out() -> None:
    times = Times(drafted_s=2.5, gained=4.0, plain_s=1.0)  # wins by itself
    times.reading_s = 2.5
    assert times.rounds(FIRST_PAUSE) <= 3 * DRAFTED_ROUNDS
    assert times.governor.paused


def test_short_answers_to_long_prompts_are_not_drafted() -> None:
    now = 0.0

    def costing(of: LlamaForCausalLM, pass_s: float) -> Reader:
        made = reader(of)
        read = made.read

        def timed(rows: slice, tokens: list[list[int]], *arguments: Any, **more: Any) -> torch.Tensor:
            nonlocal now
            now += pass_s * (1 + len(tokens[0]) / 5)
            return read(rows, tokens, *arguments, **more)

        made.read = timed  # type: ignore[method-assign]
        return made

    drafting = Draft(costing(DRAFTS["itself"], 0.25), 3)
    made = batch(drafting, lambda: now)
    made._reader = costing(MODEL, 1.0)
    made.prefill_tokens = CONTEXT
    for number in range(60):
        sequence = Sequence([(number + place) % VOCABULARY for place in range(30)], 30, Sampling(temperature=0.0), 36)
        made.add(sequence)
        while len(sequence.tokens) < sequence.limit:
            made.step()
        made.remove(sequence)
    assert drafting.accepted > drafting.drafted / 2, "its rounds alone would pay"
    assert drafting.governor.paused, "with the prompts that it has to read they do not"
