"""When requests come: seeded, of the shape that was asked for, checked against plain counting."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladr.bench.arrivals import Arrival, Kind, Length, Shape, constant, poisson, pulse
from ladr.bench.prompts import Prompts
from ladr.bench.trace import TraceError, read_trace


@given(st.floats(20, 200), st.integers(0, 2**32))
def test_poisson_arrivals_come_at_their_rate_with_exponential_gaps(rate: float, seed: int) -> None:
    times = list(poisson(rate, 50.0, Random(seed)))
    expected = 50 * rate
    assert abs(len(times) - expected) < 6 * math.sqrt(expected)
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < 50
    gaps = [after - before for before, after in pairwise(times)]
    longer = sum(gap > 1 / rate for gap in gaps) / len(gaps)
    assert abs(longer - math.exp(-1)) < 6 * math.sqrt(0.25 / len(gaps))


@given(st.floats(0.1, 500), st.floats(0.01, 5))
def test_constant_arrivals_are_evenly_spaced_and_fill_the_duration(rate: float, duration: float) -> None:
    times = list(constant(rate, duration))
    assert times == [pytest.approx(n / rate) for n in range(len(times))]
    assert times[-1] < duration <= len(times) / rate + 1e-9


@given(st.integers(1, 500), st.floats(0, 3), st.floats(0, 20), st.integers(0, 99))
def test_a_pulse_stands_on_its_base_a_third_of_the_way_in(count: int, over: float, rate: float, seed: int) -> None:
    shape = Shape("pulse", Length(5), Length(5), count, over)
    times = [arrival.at_s for arrival in shape.arrivals(rate, 9.0, seed)]
    base = [arrival.at_s for arrival in Shape("poisson", Length(5), Length(5)).arrivals(rate, 9.0, seed)]
    assert times == sorted([*base, *pulse(count, 3.0, over)])
    assert len(times) - len(base) == count
    assert all(3 <= at <= 3 + over for at in pulse(count, 3.0, over))


@given(st.sampled_from(["poisson", "constant", "pulse"]), st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_arrivals_and_another_gives_others(kind: Kind, seed: int) -> None:
    shape = Shape(kind, Length(100, 0.7), Length(50, 0.7), 5)
    assert list(shape.arrivals(20, 5, seed)) == list(shape.arrivals(20, 5, seed))
    assert list(shape.arrivals(20, 5, seed)) != list(shape.arrivals(20, 5, seed + 1))


@given(st.integers(1, 5000), st.floats(0, 1.5), st.integers(0, 99))
def test_a_length_stays_within_its_bounds(median: int, sigma: float, seed: int) -> None:
    length, rng = Length(median, sigma), Random(seed)
    drawn = [length.draw(rng) for _ in range(50)]
    assert all(1 <= each <= length.longest for each in drawn)
    assert sigma or set(drawn) == {median}


def test_the_mean_of_a_length_is_that_of_its_draws() -> None:
    length, rng = Length(400, 0.7), Random(1)
    drawn = [length.draw(rng) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(length.mean, rel=0.03)


@given(st.integers(0, 1000), st.integers(1, 3000), st.integers(0, 99))
def test_a_prompt_has_four_bytes_a_token_and_is_no_others(number: int, tokens: int, seed: int) -> None:
    prompts = Prompts(seed)
    prompt = prompts.prompt(number, tokens)
    assert len(prompt.encode()) == 4 * tokens
    assert prompt == Prompts(seed).prompt(number, tokens)
    if tokens > 4:
        assert prompt[:8] != prompts.prompt(number + 1, tokens)[:8]


def test_prompts_of_a_session_begin_alike_and_differ_in_the_end() -> None:
    prompts = Prompts(0)
    first, second = prompts.prompt(1, 100, "s"), prompts.prompt(2, 200, "s")
    assert first[:390] == second[:390]
    assert first != prompts.prompt(2, 100, "s")
    assert prompts.prompt(1, 100, "t")[:8] != first[:8]


tokens = st.integers(1, 10**6)
lines = st.fixed_dictionaries(
    {"at_s": st.floats(0, 1e6) | st.integers(0, 1000), "prompt_tokens": tokens, "answer_tokens": tokens},
    optional={
        "model": st.text(max_size=9),
        "session_id": st.text(max_size=9),
        "priority": st.sampled_from(["high", "batch"]),
    },
)


@given(st.lists(lines, min_size=1, max_size=20))
def test_a_trace_that_is_written_is_read_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    file = tmp_path_factory.mktemp("trace") / "t.jsonl"
    file.write_text("\n\n".join(json.dumps(row) for row in rows))
    assert read_trace(file) == sorted((Arrival(**row) for row in rows), key=lambda arrival: arrival.at_s)


wrong = st.one_of(
    st.fixed_dictionaries({"at_s": st.floats(max_value=-1e-9) | st.text() | st.booleans() | st.none()}),
    st.fixed_dictionaries(
        {"prompt_tokens": st.integers(max_value=0) | st.floats(0.1, 0.9) | st.text() | st.booleans()}
    ),
    st.fixed_dictionaries({"priority": st.text().filter(lambda text: text not in ("high", "normal", "batch"))}),
    st.fixed_dictionaries({"colour": st.integers()}),
)


@given(wrong, st.integers(0, 5))
def test_a_wrong_line_is_named_with_its_key(
    tmp_path_factory: pytest.TempPathFactory, wrong: dict[str, Any], before: int
) -> None:
    good = {"at_s": 0, "prompt_tokens": 1, "answer_tokens": 1}
    file = tmp_path_factory.mktemp("trace") / "t.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*[good] * before, {**good, **wrong}]))
    with pytest.raises(TraceError, match=f"^{file}:{before + 1}: .*{next(iter(wrong))}") as raised:
        read_trace(file)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no requests in it"),
        (b"\n \n", "no requests in it"),
        (b"{\n", ":1: Invalid JSON"),
        (b"[]\n", ":1: Input should be an object"),
        (b'{"at_s": NaN, "prompt_tokens": 1, "answer_tokens": 1}', ":1: at_s: "),
        (b'{"at_s": 0}', ":1: prompt_tokens: Field required"),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(content)
    with pytest.raises(TraceError) as raised:
        read_trace(file)
    assert message in str(raised.value)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "nowhere.jsonl")
