"""The prefix cache of the simulated engine, against a slow second implementation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.worker.engines.prefixes import BLOCK_TOKENS, PrefixCache

BLOCK = 4 * BLOCK_TOKENS


def block_texts(prompt: str) -> list[str]:
    """Each beginning of a prompt of one letter a block."""
    return [prompt[: n + 1] for n in range(len(prompt))]


@given(st.integers(0, 5), st.lists(st.text("ab", max_size=4), max_size=30), st.integers(0, BLOCK - 1))
def test_what_is_found_is_the_longest_beginning_that_was_read_lately(most: int, prompts: list[str], rest: int) -> None:
    cache = PrefixCache(most * BLOCK_TOKENS + rest // 4)
    held: list[str] = []  # beginnings of prompts, the latest first
    for prompt in prompts:
        blocks = cache.blocks("m", b"".join(letter.encode() * BLOCK for letter in prompt) + b"x" * rest)
        expected = 0
        for beginning in block_texts(prompt):
            if beginning not in held:
                break
            expected += BLOCK_TOKENS
        assert cache.found(blocks) == expected
        cache.keep(blocks)
        read = block_texts(prompt)
        held = (read + [old for old in held if old not in read])[:most]


def test_another_model_has_read_nothing() -> None:
    cache = PrefixCache(1000)
    cache.keep(cache.blocks("one", b"x" * 2 * BLOCK))
    assert cache.found(cache.blocks("one", b"x" * 2 * BLOCK)) == 2 * BLOCK_TOKENS
    assert cache.found(cache.blocks("other", b"x" * 2 * BLOCK)) == 0
