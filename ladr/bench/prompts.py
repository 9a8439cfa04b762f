"""Prompts of a given length, each its own from the first byte on, and cheap to make while others wait."""

from __future__ import annotations

from random import Random

_WORDS = (
    "the",
    "and",
    "you",
    "for",
    "are",
    "not",
    "but",
    "had",
    "was",
    "all",
    "any",
    "can",
    "our",
    "out",
    "day",
    "who",
)
_POOL_TOKENS = 1 << 16
_HEAD = _TAIL = 9  # bytes: a number in hex and a space
_MIX = 2_654_435_761  # Knuth's multiplicative hash: neighbours land far apart


class Prompts:
    """Cut from one long text of four-byte words, so that N tokens are 4N bytes. The same for the same seed."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"{seed} prompts")  # noqa: S311  # repeatable on purpose
        self._pool = "".join(f"{word} " for word in rng.choices(_WORDS, k=_POOL_TOKENS))
        self._salt = rng.getrandbits(32)

    def prompt(self, number: int, tokens: int, session_id: str = "") -> str:
        """The prompt of request `number`. Those of one session begin alike, as its turns would."""
        key = Random(session_id).getrandbits(32) if session_id else number  # noqa: S311  # a hash, the same in any process
        key = (key * _MIX + self._salt) % (1 << 32)
        size = 4 * tokens
        room = size - _HEAD - _TAIL
        if room <= 0:
            return f"{(number * _MIX + self._salt) % 16**size:0{size}x}"
        return f"{key:08x} {self._text(key, room)} {number % (1 << 32):08x}"

    def _text(self, key: int, size: int) -> str:
        at = key % len(self._pool)
        text = self._pool[at : at + size]
        while len(text) < size:
            text += self._pool[: size - len(text)]
        return text
