"""Models of a few thousand random weights, and packed batches for them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from services.distiller.objective.batch import IGNORE, Batch

torch.set_num_threads(1)  # so small products are much slower on two threads of a busy machine

VOCABULARY = 61
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 5}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 6}),
}


def model(family: str = "llama", layers: int = 2, seed: int = 0, dtype: Any = torch.float64, **options: Any) -> Any:
    """A random model whose attention is not flat."""
    config, kind, own = FAMILIES[family]
    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.4,
        "bos_token_id": None,
        "eos_token_id": None,
        **own,
        **options,
    }
    torch.manual_seed(seed)
    return kind(config(num_hidden_layers=layers, **values)).to(dtype).eval()


def packed(rows: int = 2, time: int = 17, seed: int = 0, vocabulary: int = VOCABULARY) -> Batch:
    """Rows of documents of 1 to 9 tokens, whose first third is not scored, and a padded end."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (rows, time), generator=random)
    positions, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORE)
    for row in range(rows):
        at = 0
        while at < time - 2:
            length = min(int(torch.randint(1, 10, (), generator=random)), time - 2 - at)
            positions[row, at : at + length] = torch.arange(length)
            first = at + length // 3
            labels[row, first : at + length] = ids[row, first : at + length]
            at += length
    return Batch(ids, labels, positions)
