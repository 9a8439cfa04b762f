"""Which beginnings of prompts a simulated engine has read lately, in blocks, as engines keep keys and values in blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 64
_BLOCK_BYTES = 4 * BLOCK_TOKENS


class PrefixCache:
    """Least recently used blocks go first, and of one prompt its last ones. Holds `tokens` tokens, in whole blocks."""

    def __init__(self, tokens: int) -> None:
        self._most = tokens // BLOCK_TOKENS
        self._held: OrderedDict[int, None] = OrderedDict()

    def blocks(self, model: str, prompt: bytes) -> Sequence[int]:
        """Names of a prompt's whole blocks; each stands for all that comes before it too."""
        names: list[int] = []
        name = hash(model)
        for start in range(0, len(prompt) - _BLOCK_BYTES + 1, _BLOCK_BYTES) if self._most else ():
            name = hash((name, prompt[start : start + _BLOCK_BYTES]))
            names.append(name)
        return names

    def found(self, blocks: Sequence[int]) -> int:
        """How many tokens of a prompt are held."""
        count = next((n for n, block in enumerate(blocks) if block not in self._held), len(blocks))
        return count * BLOCK_TOKENS

    def keep(self, blocks: Sequence[int]) -> None:
        """A prompt was read."""
        for block in reversed(blocks):
            self._held[block] = None
            self._held.move_to_end(block)
        while len(self._held) > self._most:
            self._held.popitem(last=False)
