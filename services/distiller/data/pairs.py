"""Pairs for the balance of refusals: a prompt that ought to be refused, and a harmless one that looks like it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.distiller.data.encode import Document, Encoder
from services.distiller.data.record import Record

BUNDLED = Path(__file__).with_name("refusals.jsonl")


@dataclass(frozen=True)
class Pair:
    """What is asked, and what a good model says to it."""

    harmful: str
    refusal: str
    harmless: str
    answer: str


def read_pairs(path: Path = BUNDLED) -> list[Pair]:
    return [Pair(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def split(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Those that are trained on, and those that are measured on: every second one."""
    return list(pairs[0::2]), list(pairs[1::2])


def drawn(pairs: Sequence[Pair], count: int, seed: int, step: int) -> list[Pair]:
    """The pairs of a step, at most all; the same in every run of the job."""
    chosen = np.random.default_rng([seed, step]).permutation(len(pairs))[:count]
    return [pairs[one] for one in chosen]


def documents(pair: Pair, encoder: Encoder) -> tuple[Document, Document]:
    """The harmful prompt with its refusal, and the harmless one with its answer."""
    return _document(pair.harmful, pair.refusal, encoder), _document(pair.harmless, pair.answer, encoder)


def _document(prompt: str, answer: str, encoder: Encoder) -> Document:
    turns = ({"role": "user", "content": prompt}, {"role": "assistant", "content": answer})
    (document,) = encoder.encode(Record(messages=turns))
    return document
