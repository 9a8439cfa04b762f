"""A JSON Lines file, and where each of its records begins: what is trained on, and what is held out.

The file is read once from end to end before the first step, so that a broken line is named then; after that records are read
one by one from where they lie.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ladr.errors import InvalidRequest
from services.common.sources import under
from services.distiller.data.record import Broken, read
from services.distiller.refused import Refused

T = TypeVar("T")
BUNDLED = Path(__file__).with_name("conversations.jsonl")
LINE_BYTES = 64 << 20
Offsets = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Corpus:
    """`train` and `held_out`: the byte at which each record begins, in the file's order. `digest`: of the whole file;
    `identity`: of what was read, by the file system."""

    path: Path
    train: Offsets
    held_out: Offsets
    digest: str
    identity: tuple[int, ...]

    def line(self, offset: int) -> bytes:
        """The record that begins there. Raises: Refused: the file is not the one that was scanned."""
        try:
            # without waiting for a writer, as a pipe in the file's place would have it
            with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                if _identity(file.fileno()) == self.identity:
                    file.seek(offset)
                    return file.readline(LINE_BYTES)
        except OSError as error:
            raise _changed(f"it cannot be read: {error.strerror}") from error
        raise _changed("it was written or replaced")

    def record(self, offset: int, read: Callable[[bytes], T]) -> T:
        """What `read` makes of it. Raises: Refused: it is none any more."""
        try:
            return read(self.line(offset))
        except Broken as error:
            raise _changed(f"the record at byte {offset}: {error}") from error

    def drawn(self, seed: int) -> Offsets:
        """What is held out, in an order that the seed draws: any first part of it is a sample, also of a sorted file."""
        order: Offsets = np.random.default_rng([seed]).permutation(self.held_out)
        return order


def find(source: str, root: Path) -> Path:
    """The file of `data.path`; empty is the one that comes with the service.

    Raises: Refused: it lies outside the data root, or is not there.
    """
    if not source:
        return BUNDLED
    try:
        path = under(root, source, "data", "data.path")
    except InvalidRequest as error:
        raise Refused("DATA_PATH", error.message) from None
    if not path.is_file():
        message = f"data.path: there is no file {source[:200]} under distiller.data_root: put the JSON Lines file there"
        raise Refused("DATA_PATH", message)
    return path


def scan(path: Path, holdout: float, seed: int, read: Callable[[bytes], Any] = read) -> Corpus:
    """Look at each line once.

    Which records are held out is a matter of their bytes and the seed alone: another order of the lines, or more of them,
    moves none. Of two records or more, at least one is held out.
    Args: holdout: the share that is held out, over 0 and under 1. read: raises Broken if a line is no record.
    Raises: Refused: a line is no record (named by its number), or there is nothing to train on.
    """
    train, held_out = array("q"), array("q")
    limit = int(holdout * 2**64)
    least, least_offset = 2**64, -1
    whole = hashlib.blake2b(digest_size=16)
    offset = number = 0
    with path.open("rb") as file:
        identity = _identity(file.fileno())
        while line := file.readline(LINE_BYTES):
            number += 1
            whole.update(line)
            if line.strip():
                _check(line, number, read)
                rank = _rank(line, seed)
                (held_out if rank < limit else train).append(offset)
                if rank < least:
                    least, least_offset = rank, offset
            offset += len(line)
    if not held_out and len(train) > 1:
        train.remove(least_offset)
        held_out.append(least_offset)
    if not train:
        raise Refused(
            "DATA_EMPTY", "the data has no record to train on: give a file with more lines, or a lower data.holdout"
        )
    return Corpus(path, np.array(train), np.array(held_out, dtype=np.int64), whole.hexdigest(), identity)


def _identity(descriptor: int) -> tuple[int, ...]:
    """Which file it is, and how it was last written."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _changed(why: str) -> Refused:
    message = f"the data is not what it was when the job began ({why}): put the file back, then resume the job"
    return Refused("DATA_CHANGED", message)


def _check(line: bytes, number: int, read: Callable[[bytes], Any]) -> None:
    if len(line) == LINE_BYTES and not line.endswith(b"\n"):
        raise Refused(
            "DATA_BROKEN", f"line {number} of the data is longer than {LINE_BYTES >> 20} MiB: split the record"
        )
    try:
        read(line)
    except Broken as error:
        raise Refused("DATA_BROKEN", f"line {number} of the data: {error}; mend it or take it out") from None


def _rank(line: bytes, seed: int) -> int:
    """A number under 2⁶⁴ that is as good as drawn, and always the same for this record."""
    return int.from_bytes(
        hashlib.blake2b(line.strip(), digest_size=8, key=seed.to_bytes(8, "little")).digest(), "little"
    )
