from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

WORDS: list[str] = []


def token_of(word: str) -> int:
    if word not in WORDS:
        WORDS.append(word)
    return WORDS.index(word)


class Tokenizer:
    eos_token_id = token_of("<eos>")

    def __len__(self) -> int:
        return len(WORDS)

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [token_of(word) for word in text.split()]}

    def apply_chat_template(self, turns: list[dict[str, str]], **_: Any) -> dict[str, list[int]]:
        return self(f"{turns[-1]['content']} <assistant>")

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        assert skip_special_tokens
        words = [WORDS[token] for token in ids if not WORDS[token].startswith("<")]
        return b"".join(
            bytes.fromhex(word[2:]) if word.startswith("0x") else f" {word}".encode() for word in words
        ).decode("utf-8", "replace")


class AsyncLLM:
    def __init__(self, args: Any) -> None:
        self.args = args
        self.running: set[str] = set()
        self.down = False

    @classmethod
    def from_engine_args(cls, args: Any) -> AsyncLLM:
        return cls(args)

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def shutdown(self) -> None:
        self.down = True

    async def generate(self, prompt: dict[str, Any], params: Any, request_id: str) -> AsyncIterator[Any]:
        assert request_id not in self.running
        self.running.add(request_id)
        try:
            script, said = list(prompt["prompt_token_ids"]), 0
            if (mark := token_of("<assistant>")) in script:
                said = len(script) - script.index(mark) - 1
                del script[script.index(mark) :]
            for count, token in enumerate(script[said:], 1):
                await asyncio.sleep(0.01)
                word = WORDS[token]
                if word == "<broken>":
                    raise RuntimeError("EngineCore died at 10.0.0.7")
                out = SimpleNamespace(text="", token_ids=[token], finish_reason=None, stop_reason=None, logprobs=None)
                if params.logprobs is not None:
                    assert params.detokenize
                    out.logprobs = [{token: SimpleNamespace(rank=1, logprob=-0.5, decoded_token=word)}]
                if word == "<eos>":
                    out.finish_reason = "stop"
                elif count == params.max_tokens:
                    out.finish_reason = "length"
                yield SimpleNamespace(outputs=[out], finished=out.finish_reason is not None, num_cached_tokens=2)
                if out.finish_reason:
                    return
        finally:
            self.running.discard(request_id)
