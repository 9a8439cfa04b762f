"""What LADR uses of vLLM, in vLLM's shapes, over a script of tokens: vLLM itself needs a GPU.

Written after vLLM's public AsyncLLM interface (v1). "a b c" as a prompt answers with those words, one token each; the word
<eos> ends the turn, <broken> breaks the engine.
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
    stop: list[str]
    seed: int | None
    logprobs: int | None
    output_kind: Any


def TokensPrompt(prompt_token_ids: list[int]) -> dict[str, Any]:  # vLLM's name
    return {"prompt_token_ids": prompt_token_ids}
