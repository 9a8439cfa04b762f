"""What is trained on, in which order, and that a stream goes on from where another was."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.distiller.data import stream
from services.distiller.data.corpus import scan
from services.distiller.data.encode import Encoder
from services.distiller.data.packing import choose
from services.distiller.data.stream import WINDOW, Reader, Stream, once
from services.distiller.refused import Refused
from tests.distiller import tiny

TOKENS = 64


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    path = tiny.write(tmp_path_factory.mktemp("data") / "c.jsonl", tiny.conversations(90))
    tokenizer = tiny.tokenizer()
    return Reader(scan(path, 0.2, 0), Encoder(tokenizer, [tokenizer.eos_token_id]), TOKENS)


def test_every_record_comes_once_each_time_round_and_in_another_order(reader: Reader) -> None:
    stream = Stream(reader, 5, 0)
    records = len(reader.corpus.train)
    order: list[tuple[int, int]] = []
    while len(order) < 4 * records + WINDOW:
        order += [key for key, _, _ in next(stream).slots]
    keys = {piece.key for offset in reader.corpus.train for piece in reader.pieces(int(offset))}
    assert set(order) == keys
    counts = Counter(order)
    assert max(counts.values()) - min(counts.values()) <= 2  # one epoch's end waits while the next begins
    per_epoch = len(keys)
    assert order[:per_epoch] != order[per_epoch : 2 * per_epoch]
    assert order[:20] != [key for key, _, _ in next(Stream(reader, 6, 0)).slots][:20]


@settings(max_examples=25)
@given(before=st.integers(0, 60), seed=st.integers(0, 2**63 - 1))
def test_a_restored_stream_gives_what_the_other_would_have_given(reader: Reader, before: int, seed: int) -> None:
    stream = Stream(reader, seed, 0)
    for _ in range(before):
        next(stream)
    position = json.loads(json.dumps(stream.position))
    again = Stream(reader, seed, 0)
    again.restore(position)
    assert [next(again) for _ in range(30)] == [next(stream) for _ in range(30)]
    assert again.position == stream.position


def test_where_a_stream_is_does_not_grow_with_what_it_has_given(reader: Reader) -> None:
    stream = Stream(reader, 1, 0)
    for _ in range(200):
        next(stream)
    assert len(stream.position["waiting"]) <= WINDOW + 2
    assert stream.epoch > 2


def test_little_of_a_sequence_is_padding(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "c.jsonl", [{"text": "x" * (length % 60 + 2)} for length in range(0, 3000, 7)])
    tokenizer = tiny.tokenizer()
    reader = Reader(scan(path, 0.1, 0), Encoder(tokenizer, [tokenizer.eos_token_id]), TOKENS)
    stream = Stream(reader, 1, 0)
    filled = [next(stream).length for _ in range(100)]
    assert sum(filled) / (100 * TOKENS) > 0.95


def test_held_out_records_come_once_and_none_of_them_is_trained_on(reader: Reader) -> None:
    given_once = [key for packed in once(reader, reader.corpus.held_out, 0) for key, _, _ in packed.slots]
    assert len(given_once) == len(set(given_once))
    assert {offset for offset, _ in given_once} == set(map(int, reader.corpus.held_out))
    stream = Stream(reader, 1, 0)
    trained = {offset for _ in range(150) for (offset, _), _, _ in next(stream).slots}
    assert not trained & set(map(int, reader.corpus.held_out))


def test_data_in_which_nothing_is_scored_is_refused_and_some_such_records_are_skipped(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    encoder = Encoder(tokenizer, [tokenizer.eos_token_id])
    mute = {"messages": [{"role": "user", "content": "hello?"}]}
    path = tiny.write(tmp_path / "mute.jsonl", [{**mute, "number": number} for number in range(9)])
    with pytest.raises(Refused) as refused:
        next(Stream(Reader(scan(path, 0.1, 0), encoder, TOKENS), 0, 0))
    assert refused.value.reason == "ALL_LABELS_MASKED"
    some = Reader(scan(tiny.write(path, [mute, *tiny.conversations(9)]), 0.1, 0), encoder, TOKENS)
    assert next(Stream(some, 0, 0)).scored > 0
    assert some.skipped > 0


def test_a_record_of_thousands_of_pieces_does_not_hold_the_others_up(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    path = tiny.write(tmp_path / "long.jsonl", [{"text": "x" * TOKENS * 20_000}, *({"text": f"{n}"} for n in range(9))])
    reader = Reader(scan(path, 0.1, 0), Encoder(tokenizer, [tokenizer.eos_token_id]), TOKENS)
    source = Stream(reader, 0, tokenizer.pad_token_id)
    compared = 0

    def counted(lengths: list[int], room: int) -> list[int]:
        nonlocal compared
        compared += len(lengths)
        return choose(lengths, room)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "choose", counted)
        for _ in range(100):
            next(source)
    assert compared <= 100 * WINDOW


def test_a_document_longer_than_a_sequence_is_cut(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    path = tiny.write(tmp_path / "long.jsonl", [{"text": "x" * 200}, {"text": "y" * 150}])
    reader = Reader(scan(path, 0.1, 0), Encoder(tokenizer, [tokenizer.eos_token_id]), TOKENS)
    pieces = reader.pieces(0)
    assert [len(one.document.ids) for one in pieces] == [64, 64, 64, 9]
    assert [one.key for one in pieces] == [(0, 0), (0, 1), (0, 2), (0, 3)]
