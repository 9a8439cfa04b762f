"""A model of a few thousand weights with a tokenizer and a chat template, and conversations for it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Bytes
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tokenizer() -> Any:
    """A token for each byte, and three of its own: <|start|>, <|end|> (which ends a turn), <|pad|>."""
    alphabet = sorted(ByteLevel.alphabet())
    words = Tokenizer(BPE({one: place for place, one in enumerate(alphabet)}, []))
    words.pre_tokenizer, words.decoder = ByteLevel(add_prefix_space=False), Bytes()
    made = PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|start|>"],
    )
    made.chat_template = TEMPLATE
    return made


def teacher(seed: int = 0, layers: int = 4, vocabulary: int = 264, width: int = 16) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=256,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


def save(root: Path, **options: Any) -> Path:
    """A teacher with its tokenizer."""
    teacher(**options).save_pretrained(root)
    tokenizer().save_pretrained(root)
    return root


def conversations(count: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    made = []
    for number in range(count):
        a, b = draw.randrange(10), draw.randrange(10)
        turns = [{"role": "user", "content": f"{a}+{b}?"}, {"role": "assistant", "content": f"{a + b}"}]
        made.append({"messages": turns * draw.randrange(1, 3), "number": number})
    return made


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
