"""What must be known of a GGUF file before llama.cpp loads it, which ends the process over a header that it does not like."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ladr.errors import InvalidRequest

_STRING, _ARRAY = 8, 9
_GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type
_GGUF_BOUNDS = {"context_length": 1 << 28, "block_count": 512}
_GGUF_STRING_BYTES = 16 << 20


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself: the context in tokens that it was trained for, and its chat template or ""."""

    context: int
    chat_template: str


def read_header(path: Path) -> Header:
    """Read the header of a GGUF file.

    Raises: InvalidRequest: not a GGUF file, or its header makes no sense.
    """
    try:
        with path.open("rb") as file:
            return _read_header(file)
    except (OSError, ValueError, KeyError, struct.error):
        raise InvalidRequest("the source is not a sound GGUF file", field="source") from None


def _read_header(file: BinaryIO) -> Header:
    """Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

    def number(form: str) -> int:
        value: int = struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0]
        return value

    def length() -> int:
        size = number("Q")
        if size > _GGUF_STRING_BYTES:
            raise ValueError("string too long")
        return size

    def string() -> str:
        size = length()
        if len(data := file.read(size)) < size:
            raise ValueError("cut")
        return data.decode("utf-8")

    def skip(kind: int) -> None:
        if kind == _STRING:
            file.seek(length(), 1)
        elif kind == _ARRAY:
            inner, count = number("I"), number("Q")
            if inner != _STRING:
                file.seek(_GGUF_SIZES[inner] * count, 1)
                return
            for _ in range(count):
                file.seek(length(), 1)
        else:
            file.seek(_GGUF_SIZES[kind], 1)

    if file.read(4) != b"GGUF" or number("I") not in (2, 3):
        raise ValueError("not GGUF")
    tensors, pairs = number("Q"), number("Q")
    if not 0 < tensors < 1 << 20:
        raise ValueError("no tensors")
    architecture = chat_template = ""
    found: dict[str, int] = {}
    for _ in range(pairs):
        key, kind = string(), number("I")
        name = key.removeprefix(f"{architecture}.")
        if key == "general.architecture" and kind == _STRING:
            architecture = string()
        elif key == "tokenizer.chat_template" and kind == _STRING:
            chat_template = string()
        elif architecture and name in _GGUF_BOUNDS and name != key and kind in (4, 10):
            found[name] = number("I" if kind == 4 else "Q")
            if not 0 < found[name] <= _GGUF_BOUNDS[name]:
                raise ValueError(f"{name} out of bounds")  # llama.cpp would end the process over it
        else:
            skip(kind)
    if found.keys() != _GGUF_BOUNDS.keys():
        raise ValueError("no context length")
    return Header(found["context_length"], chat_template)
