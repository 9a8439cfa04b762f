"""Notes of what was measured: nothing twice, whatever was torn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.distiller.report.notes import Notes, dumped

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_whatever_is_written_is_json_without_nan(value: object) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(dumped(value), parse_constant=refuse)


def test_a_number_that_is_none_becomes_null_and_the_rest_stays() -> None:
    assert json.loads(dumped({"a": [math.nan, 1.5, (math.inf,)], "b": "x"})) == {"a": [None, 1.5, [None]], "b": "x"}


def test_a_part_is_measured_once(tmp_path: Path) -> None:
    notes, calls = Notes(tmp_path), []

    def measure() -> dict[str, int]:
        calls.append(1)
        return {"x": len(calls)}

    assert notes.missing("a", "b") == ["a", "b"]
    assert notes.once("a", measure) == notes.once("a", measure) == {"x": 1}
    assert notes.missing("a", "b") == ["b"]


@pytest.mark.parametrize("harm", [b"", b"{", b"{}", b"[]", b"\0\0\0", b"\xff"])
def test_a_part_that_does_not_parse_is_measured_again(tmp_path: Path, harm: bytes) -> None:
    notes = Notes(tmp_path)
    notes.once("a", lambda: {"x": 1})
    list(notes.each("b", [1, 2, 3], lambda batch: [batch]))
    (tmp_path / "a.json").write_bytes(harm)
    lines = (tmp_path / "b.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_bytes(b"".join([lines[0], harm + b"\n", lines[2]]))
    assert notes.missing("a") == ["a"]
    assert notes.once("a", lambda: {"x": 2}) == {"x": 2}
    assert not notes.complete("b", 2)
    assert list(notes.each("b", [1, 2, 3], lambda batch: [10 * batch])) == [[1], [20], [30]]


@pytest.mark.parametrize("cut", range(12))
def test_batches_that_are_whole_are_kept_and_the_torn_one_is_measured_again(tmp_path: Path, cut: int) -> None:
    notes, batches = Notes(tmp_path), [[1, 2], [3, 4], [5]]
    whole = list(notes.each("a", batches, lambda batch: [10 * one for one in batch]))
    assert whole == [[10, 20], [30, 40], [50]]
    assert notes.complete("a", 3)
    file = tmp_path / "a.jsonl"
    text = file.read_bytes()
    file.write_bytes(text[: -1 - cut])
    measured = []

    def again(batch: list[int]) -> list[int]:
        measured.append(batch)
        return [10 * one for one in batch]

    assert not notes.complete("a", 3)
    assert list(notes.each("a", batches, again)) == whole
    assert measured == batches[text[: -1 - cut].count(b"\n") :]
    assert file.read_bytes() == text


def test_an_interruption_keeps_the_batches_before_it(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    rows = notes.each("a", [1, 2, 3], lambda batch: [batch])
    assert next(rows) == [1]
    rows.close()
    assert list(notes.each("a", [1, 2, 3], lambda batch: [-batch])) == [[1], [-2], [-3]]
