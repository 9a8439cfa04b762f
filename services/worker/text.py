"""Small pure pieces of text handling that engines share."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from ladr.errors import PromptTooLong
from services.worker.engine import EngineRequest, TokenLogprob

_MAX_TOKEN_BYTES = 128  # longer than any token of a usual vocabulary (runs of spaces are the longest)


class Utf8Assembler:
    """Bytes in, whole characters out, however the bytes were cut.

    Bytes that are not UTF-8 come out as U+FFFD, the same number of them as `bytes.decode("utf-8", "replace")` gives.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """Take more bytes; return the characters that they complete."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End the text: U+FFFD if a character was still in parts, else nothing."""
        return self._decoder.decode(b"", final=True)


class StopScanner:
    """Text in, text out that can no longer be the beginning of a stop string.

    The stop string that is complete first wins; of several complete at once, the longest. How the text is cut into pieces
    makes no difference. No part of the stop string that is hit is ever given out, and nothing that comes after it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._first = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._hit = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Take more text; return what is now certain to be part of the answer, and the stop string that ended it or ""."""
        if self._hit:
            return "", self._hit
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self._hit = min(found)
            self._held = ""
            return text[:at], self._hit
        cut = self._certain(text)
        self._held = text[cut:]
        return text[:cut], ""

    def flush(self) -> str:
        """End the text: return what was held back."""
        held, self._held = self._held, ""
        return held

    def _certain(self, text: str) -> int:
        """Where the longest tail of `text` that begins a stop string starts; its length if there is none."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[at] in self._first and any(stop.startswith(text[at:]) for stop in self._stops):
                return at
        return len(text)


def token_logprobs(entries: Sequence[Mapping[str, Any]], alternatives: int) -> tuple[TokenLogprob, ...]:
    """The entries of an OpenAI `logprobs.content` list, each with at most `alternatives` rivals.

    `token_id` is 0 where the upstream does not tell it (only llama.cpp does, as `id`).
    """
    return tuple(
        TokenLogprob(
            token_id=int(entry.get("id", 0)),
            token=str(entry.get("token", "")),
            logprob=min(0.0, float(entry.get("logprob", 0.0))),
            top=token_logprobs((entry.get("top_logprobs") or [])[:alternatives], 0),
        )
        for entry in entries
    )


def refuse_hopeless(request: EngineRequest, context_tokens: int) -> None:
    """Refuse a prompt that cannot fit however it is cut into tokens, before it costs the time to cut it.

    Raises: PromptTooLong: it has more bytes than the longest tokens could hold.
    """
    size = len(request.prompt.encode("utf-8", "surrogatepass"))
    size += sum(len(message.content.encode("utf-8", "surrogatepass")) for message in request.messages)
    if size > context_tokens * _MAX_TOKEN_BYTES:
        raise PromptTooLong(f"the prompt has {size} bytes, the model's context {context_tokens} tokens", field="prompt")
