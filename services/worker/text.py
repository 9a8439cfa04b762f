"""Small pure pieces of text handling that engines share."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ladr.errors import PromptTooLong
from services.worker.engine import EngineRequest, TokenLogprob

_MAX_TOKEN_BYTES = 128  # longer than any token of a usual vocabulary (runs of spaces are the longest)
_WINDOW = 8  # tokens that are decoded together to find the text of the last


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

    @property
    def held(self) -> str:
        """What may be the beginning of a stop string."""
        return self._held

    def _certain(self, text: str) -> int:
        """Where the longest tail of `text` that begins a stop string starts; its length if there is none."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[at] in self._first and any(stop.startswith(text[at:]) for stop in self._stops):
                return at
        return len(text)


class AnswerText:
    """Text of an answer from its tokens alone: whole characters, and stop strings held back.

    `decode` gives the text of tokens, with U+FFFD at its end while a character is in parts.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._decode = decode
        self._scanner = StopScanner(stops)
        self._window: list[int] = []
        self._shown = 0  # characters of the window's text that were given out or lie in the scanner

    def feed(self, token: int) -> tuple[str, str]:
        """Take the next token; return what is now certain to be part of the answer, and the stop string that ended it or ""."""
        return self._scanner.feed(self._new(token))

    def replay(self, tokens: Sequence[int]) -> tuple[str, str]:
        """`feed` several."""
        texts, stopped = [""], ""
        for token in tokens:
            text, stopped = self.feed(token)
            texts.append(text)
        return "".join(texts), stopped

    @property
    def held(self) -> str:
        """What is held back."""
        return self._scanner.held

    def flush(self) -> str:
        """End the answer: what was held back."""
        return self._scanner.flush()

    def _new(self, token: int) -> str:
        """Text that a token completes: what decoding a window with it has over decoding it without.

        Empty while the window ends inside a character, which has four tokens at most. The window then grows; else it moves on,
        so that this stays cheap.
        """
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith("\ufffd") and len(self._window) < _WINDOW + 4:
            return ""
        new = text[self._shown :]
        if len(self._window) > _WINDOW:  # keep the last token, as context for a space before the next
            del self._window[:-1]
            text = self._decode(self._window)
        self._shown = len(text)
        return new


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


def about_tokens(request: EngineRequest) -> int:
    """Tokens to read, at about four bytes each, those of a continuation included; from 1."""
    read = request.continuation.token_count if request.continuation else 0
    return max(1, prompt_bytes(request) // 4) + read


def prompt_bytes(request: EngineRequest) -> int:
    """Bytes of the prompt or of all messages, as UTF-8."""
    texts = [request.prompt, *(message.content for message in request.messages)]
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def refuse_hopeless(request: EngineRequest, context_tokens: int) -> None:
    """Refuse a prompt that cannot fit however it is cut into tokens, before it costs the time to cut it.

    Raises: PromptTooLong: it has more bytes than the longest tokens could hold.
    """
    size = prompt_bytes(request) + len(request.continuation.text if request.continuation else "")
    if size > context_tokens * _MAX_TOKEN_BYTES:
        raise PromptTooLong(f"the prompt has {size} bytes, the model's context {context_tokens} tokens", field="prompt")
