"""transformers' `generate` by what is asked for here, and nothing that the model's own settings for generation add.

They would: what a call leaves open is filled from `model.generation_config`, where one model keeps penalties and another has
none, so that the two would be compared by different rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    most_tokens: int,
    ends: Sequence[int],
    padding: int,
    sample: bool = False,
    **options: Any,
) -> list[list[int]]:
    """What the model says after each prompt: at most so many tokens, with padding behind the one that ends it.

    The prompts are padded on the left, so that all answers begin at the same place.
    Args:
        sample: drawn at temperature 1 from all tokens; else the likeliest each time. options: more for `generate`.
    """
    width = max(map(len, prompts))
    ids = torch.tensor([[*[padding] * (width - len(one)), *one] for one in prompts], device=model.device)
    mask = torch.tensor([[*[0] * (width - len(one)), *[1] * len(one)] for one in prompts], device=model.device)
    drawn = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {}
    how = GenerationConfig(
        do_sample=sample,
        max_new_tokens=most_tokens,
        eos_token_id=list(ends),
        pad_token_id=padding,
        use_cache=True,
        **drawn,
    )
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        made = model.generate(input_ids=ids, attention_mask=mask, generation_config=how, **options)
    finally:
        model.generation_config = own
    found: list[list[int]] = made[:, width:].tolist()
    return found
