"""What LADR uses of vLLM, in vLLM's shapes, over a script of tokens: vLLM itself needs a GPU.

Written after vLLM's public AsyncLLM interface (v1). "a b c" as a prompt answers with those words, one token each, and a chat
whose template is followed by some of them goes on after these. The word <eos> ends the turn, <broken> breaks the engine, and
0xF09F stands for those bytes of a character.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class SamplingParams:
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    seed: int | None
    logprobs: int | None
    detokenize: bool
    output_kind: Any


def TokensPrompt(prompt_token_ids: list[int]) -> dict[str, Any]:  # vLLM's name
    return {"prompt_token_ids": prompt_token_ids}
