"""The file of records: what is refused, what is held out, and that no path leads out of the data root."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.distiller.data.corpus import Corpus, find, scan
from services.distiller.data.record import read
from services.distiller.refused import Refused
from tests.distiller import tiny

GOOD = '{"text": "a"}'


def texts(corpus: Corpus, offsets: Any) -> set[str]:
    return {read(corpus.line(int(offset))).text for offset in offsets}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "one of the keys"),
        ('{"prompt": "a"}', "one of the keys"),
        ('{"text": "a", "messages": []}', "one of the keys"),
        ('{"text": 3}', "not a string"),
        ('{"messages": {}}', "lists"),
        ('{"messages": [{"content": "a"}]}', "role"),
        ('{"messages": [{"role": "pirate", "content": "a"}]}', "role"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"messages": [{"role": ["user"], "content": "a"}]}', "role"),
        ('{"messages": [], "tools": [5]}', "mapping"),
        ('{"text": "\\ud83d"}', "half a character"),
        ('{"messages": [{"role": "user", "content": "a\\udfff"}]}', "half a character"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(Refused, match="line 3 of the data") as refused:
        scan(path, 0.1, 0)
    assert refused.value.reason == "DATA_BROKEN"
    assert why in refused.value.message


def test_whole_characters_are_read_however_they_are_written() -> None:
    assert read(b'{"text": "\\ud83d\\ude42"}').text == "🙂"
    assert read('{"text": "한"}'.encode()).text == "한"


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_data_with_nothing_in_it_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(text)
    with pytest.raises(Refused) as refused:
        scan(path, 0.1, 0)
    assert refused.value.reason == "DATA_EMPTY"


@given(count=st.integers(2, 60), holdout=st.floats(0.01, 0.6), seed=st.integers(0, 2**63 - 1), draw=st.randoms())
def test_what_is_held_out_does_not_depend_on_the_order_of_the_lines(
    tmp_path_factory: pytest.TempPathFactory, count: int, holdout: float, seed: int, draw: random.Random
) -> None:
    path = tmp_path_factory.mktemp("data") / "c.jsonl"
    lines = [json.dumps({"text": f"record {number}"}) for number in range(count)]
    seen = []
    for _ in range(2):
        path.write_text("\n".join(lines) + "\n")
        try:
            corpus = scan(path, holdout, seed)
        except Refused:  # few records and a large share: all of them are held out
            return
        assert len(corpus.train) + len(corpus.held_out) == count
        assert len(corpus.held_out) > 0
        seen.append((texts(corpus, corpus.train), texts(corpus, corpus.held_out)))
        draw.shuffle(lines)
    assert seen[0] == seen[1]


def test_about_the_share_that_is_asked_for_is_held_out_and_another_seed_holds_out_others(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "c.jsonl", [{"text": str(number)} for number in range(4000)])
    one, other = scan(path, 0.1, 1), scan(path, 0.1, 2)
    assert 320 < len(one.held_out) < 480
    assert texts(one, one.held_out) != texts(other, other.held_out)
    assert one.digest == other.digest


def test_a_first_part_of_what_is_held_out_is_a_sample_also_of_a_sorted_file(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "c.jsonl", [{"text": str(number)} for number in range(1000)])
    corpus = scan(path, 0.5, 0)
    drawn = corpus.drawn(3)
    assert sorted(drawn) == list(corpus.held_out)
    assert (drawn == corpus.drawn(3)).all() and (drawn != corpus.drawn(4)).any()
    assert 10 < sum(int(text) >= 500 for text in texts(corpus, drawn[:40])) < 30


def _rewritten(path: Path) -> None:
    path.write_text(path.read_text().replace("a", "z"))


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy2(path, other)
    other.replace(path)


def _piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _made_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [_rewritten, _replaced, _piped, _made_a_directory, Path.unlink])
def test_a_file_that_is_not_the_one_that_was_scanned_is_said_to_have_changed(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tiny.write(tmp_path / "c.jsonl", [{"text": "a" * 50}, {"text": "b"}, {"text": "c"}])
    corpus = scan(path, 0.1, 0)
    assert corpus.record(int(corpus.train[-1]), read)
    change(path)
    with pytest.raises(Refused, match="put the file back, then resume") as refused:
        corpus.record(int(corpus.train[-1]), read)
    assert refused.value.reason == "DATA_CHANGED"


def test_no_path_leads_out_of_the_data_root(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    tiny.write(tmp_path / "secret.jsonl", [{"text": "a"}])
    (root / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    for source in ("../secret.jsonl", "link.jsonl", str(tmp_path / "secret.jsonl"), "absent.jsonl", "a\0b"):
        with pytest.raises(Refused) as refused:
            find(source, root)
        assert refused.value.reason == "DATA_PATH"
    tiny.write(root / "own.jsonl", [{"text": "a"}])
    assert find("own.jsonl", root) == root / "own.jsonl"
