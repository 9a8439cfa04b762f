from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

WORDS: list[str] = []


def token_of(word: str) -> int:
    if word not in WORDS:
        WORDS.append(word)
    return WORDS.index(word)


class Tokenizer:
    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [token_of(word) for word in text.split()]}

    def apply_chat_template(self, turns: list[dict[str, str]], **_: Any) -> dict[str, list[int]]:
        return self(turns[-1]["content"])


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
            for count, token in enumerate(prompt["prompt_token_ids"], 1):
                await asyncio.sleep(0.01)
                word = WORDS[token]
                if word == "<broken>":
                    raise RuntimeError("EngineCore died at 10.0.0.7")
                out = SimpleNamespace(
                    text=f" {word}", token_ids=[token], finish_reason=None, stop_reason=None, logprobs=None
                )
                if params.logprobs is not None:
                    out.logprobs = [{token: SimpleNamespace(rank=1, logprob=-0.5, decoded_token=word)}]
                if word == "<eos>":
                    out.text, out.finish_reason = "", "stop"
                elif word in params.stop:
                    out.text, out.finish_reason, out.stop_reason = "", "stop", word
                elif count == params.max_tokens:
                    out.finish_reason = "length"
                yield SimpleNamespace(outputs=[out], finished=out.finish_reason is not None, num_cached_tokens=2)
                if out.finish_reason:
                    return
        finally:
            self.running.discard(request_id)
