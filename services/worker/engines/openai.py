"""The `openai` engine: passes requests on to any OpenAI-compatible upstream (vLLM, llama.cpp's server, a hosted API).

Stop strings are found here and not upstream: the protocol does not say which one was met. The stream is closed when one is.
What an upstream counts besides its tokens is asked for only where `/models` says that it is one that knows the parameter.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import httpx

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import (
    CannotResume,
    EngineFailed,
    InvalidRequest,
    LadrError,
    NotFound,
    Overloaded,
    PromptTooLong,
    Unreachable,
)
from services.worker.engine import End, EngineRequest, Gauges, Piece, TokenLogprob
from services.worker.text import StopScanner, about_tokens, token_logprobs

_LINE_BYTES = 1 << 20
_ERROR_BYTES = 64 << 10
_SEEDS = 2**31  # seeds that every upstream takes

# what an upstream understands besides OpenAI's parameters, by the `owned_by` of its models
_DIALECTS: dict[str, dict[str, Any]] = {
    "llamacpp": {"timings_per_token": True, "top_k": 0, "min_p": 0.0},
    "vllm": {"return_token_ids": True, "top_k": 0, "min_p": 0.0},
}
_RUNNING_USAGE = {"vllm"}  # take stream_options.continuous_usage_stats


@dataclass(frozen=True)
class _Upstream:
    """A model as the upstream calls it."""

    name: str
    kind: str


class OpenAIEngine:
    """Streams from one upstream over HTTP, with a connection of its own for each request."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        own = settings.openai
        key = own.api_key.get_secret_value()
        self._models: dict[str, _Upstream] = {}
        self._connect_s = own.connect_timeout.total_seconds()
        self._client = httpx.AsyncClient(
            base_url=own.base_url.rstrip("/") + "/",
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            # an answer may take its time (the call's deadline bounds it); a connection and a silence may not
            timeout=httpx.Timeout(None, connect=self._connect_s, read=own.read_timeout.total_seconds()),
            # an upstream may close an idle connection just as it is used again, and a request is not sent twice
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def load(self, model: ModelSettings, progress: Callable[[float], None]) -> int:
        """See that the upstream has the model; nothing is loaded here.

        Raises: NotFound: it has no such model. Unreachable: it does not answer. EngineFailed: it answers, but not with models.
        """
        progress(0.0)
        name = model.source or model.name
        try:
            response = await self._client.get("models", timeout=self._connect_s)
        except (httpx.HTTPError, httpx.InvalidURL):
            raise Unreachable("the upstream does not answer; see worker.openai.base_url") from None
        if response.status_code != httpx.codes.OK:
            raise EngineFailed(f"the upstream does not list its models: HTTP {response.status_code}")
        entry = _listed(response, name)
        if entry is None:
            raise NotFound("the upstream has no such model", resource=("model", name))
        self._models[model.name] = _Upstream(name, str(entry.get("owned_by", "")))
        progress(1.0)
        return _context(model.context_tokens or self._settings.context_tokens, entry)

    async def unload(self, name: str) -> None:
        del self._models[name]

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Piece | End]:
        upstream = self._models.get(request.model)
        if upstream is None:
            raise NotFound("the model is not loaded", resource=("model", request.model))
        if request.continuation:
            raise CannotResume("an upstream cannot go on with an answer that another began")
        path = "chat/completions" if request.messages else "completions"
        answer = _Answer(request)
        try:
            async with self._client.stream("POST", path, json=_body(request, upstream)) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(response, await _bounded(response))
                async with aclosing(_chunks(response)) as chunks:
                    async for chunk in chunks:
                        for event in _events(answer, chunk):
                            yield event
                            if isinstance(event, End):
                                return
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise EngineFailed("the worker's upstream does not answer") from None
        except httpx.ReadTimeout:
            raise EngineFailed("the upstream fell silent; see worker.openai.read_timeout") from None
        except httpx.HTTPError:
            raise EngineFailed("the connection to the upstream broke") from None
        for event in answer.finish():
            yield event

    def gauges(self) -> Gauges:
        return Gauges()

    async def close(self) -> None:
        await self._client.aclose()


class _Answer:
    """What the upstream has said of one request."""

    def __init__(self, request: EngineRequest) -> None:
        self._wanted = request.sampling.logprobs
        self._scanner = StopScanner(request.sampling.stop)
        self._given = 0  # tokens in pieces so far
        self._made = 0  # tokens that the upstream says it generated; 0 while it says nothing
        self._prompt = about_tokens(request)  # until the upstream tells
        self._cached = 0
        self._reason: Literal["stop", "length"] | None = None

    def take(self, chunk: Mapping[str, Any]) -> Iterator[Piece | End]:
        """The events in one chunk.

        Raises: EngineFailed: the chunk is an error.
        """
        if chunk.get("error"):
            raise EngineFailed("the upstream failed in the middle of the answer")
        self._count(chunk)
        choice: Mapping[str, Any] = next(iter(chunk.get("choices") or ()), {})
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        ids = tuple(choice.get("token_ids") or ())
        if text or (ids and not choice.get("finish_reason")):
            yield from self._say(text, ids, _logprobs(choice, self._wanted))
        if reason := choice.get("finish_reason"):
            self._reason = "length" if reason == "length" else "stop"

    def finish(self) -> Iterator[Piece | End]:
        """The events at the end of the stream.

        Raises: EngineFailed: the upstream ended it before the answer was complete.
        """
        if self._reason is None:
            raise EngineFailed("the upstream ended the stream before the answer was complete")
        made = self._made or self._given
        if self._reason == "stop" and made == self._given + 1:
            made = self._given  # the end-of-turn token, which most upstreams count
        held, untold = self._scanner.flush(), max(0, made - self._given)
        if held or untold:
            yield Piece(held, (), untold)
        yield End(self._reason, self._prompt, made, "", self._cached)

    def _count(self, chunk: Mapping[str, Any]) -> None:
        if usage := chunk.get("usage"):
            self._prompt, self._made = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
            self._cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        elif timings := chunk.get("timings"):
            self._prompt = int(timings["cache_n"] + timings["prompt_n"])
            self._made, self._cached = int(timings["predicted_n"]), int(timings["cache_n"])

    def _say(self, text: str, ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> Iterator[Piece | End]:
        told = len(ids) or self._made - self._given
        count = max(told, len(logprobs), 1)
        self._given += count
        text, stopped = self._scanner.feed(text)
        yield Piece(text, ids, count, logprobs if len(logprobs) == count else ())
        if stopped:
            yield End("stop_sequence", self._prompt, self._given, stopped, self._cached)


def _events(answer: _Answer, chunk: Mapping[str, Any]) -> list[Piece | End]:
    """`answer.take(chunk)`. Raises: EngineFailed: the chunk is an error, or not of the protocol."""
    try:
        return list(answer.take(chunk))
    except (TypeError, ValueError, KeyError, AttributeError):
        raise EngineFailed("the upstream sent an event that is not of the protocol") from None


def _body(request: EngineRequest, upstream: _Upstream) -> dict[str, Any]:
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": upstream.name,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    body |= _DIALECTS.get(upstream.kind, {})
    if upstream.kind in _RUNNING_USAGE:
        body["stream_options"]["continuous_usage_stats"] = True
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.seed is not None:
        body["seed"] = sampling.seed % _SEEDS
    if request.messages:
        body["messages"] = [{"role": message.role, "content": message.content} for message in request.messages]
        if sampling.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": max(1, sampling.logprobs)}
    else:
        body["prompt"] = request.prompt
        if sampling.logprobs is not None:
            body["logprobs"] = max(1, sampling.logprobs)
    return body


async def _chunks(response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, up to [DONE] or its end.

    Raises: EngineFailed: a line is too long, or not JSON.
    """
    async with aclosing(_lines(response.aiter_bytes())) as lines:
        async for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            try:
                chunk = json.loads(data)
            except ValueError:
                chunk = None
            if not isinstance(chunk, dict):
                raise EngineFailed("the upstream sent an event that is not a JSON object")
            yield chunk


async def _lines(parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Lines of bytes, the last included if it has no end. Raises: EngineFailed: a line has over 1 MiB."""
    held = bytearray()
    async for part in parts:
        held += part
        *lines, rest = held.split(b"\n")
        for line in lines:
            yield bytes(line)
        held = rest
        if len(held) > _LINE_BYTES:
            raise EngineFailed("the upstream sent a line that is too long")
    if held:
        yield bytes(held)


async def _bounded(response: httpx.Response) -> bytes:
    """The beginning of a body."""
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) >= _ERROR_BYTES:
            break
    return body[:_ERROR_BYTES]


def _refusal(response: httpx.Response, body: bytes) -> LadrError:
    """An answer that is not 200 as one of our errors; the upstream's own words may quote the prompt and are left out."""
    status = response.status_code
    words = body.decode("utf-8", "replace").lower().replace("_", " ")
    if status in (400, 413, 422) and any(
        sign in words for sign in ("context length", "exceed context", "context size")
    ):
        return PromptTooLong("the prompt does not fit the upstream's context", field="prompt")
    if status in (429, 503):
        seconds = response.headers.get("retry-after", "")
        retry_after = timedelta(seconds=min(int(seconds), 3600)) if seconds.isdecimal() else None
        return Overloaded("the upstream is overloaded", retry_after=retry_after)
    if status in (401, 403):
        return EngineFailed("the upstream refuses the worker's key; see worker.openai.api_key")
    if 400 <= status < 500:
        return InvalidRequest(f"the upstream refuses the request: HTTP {status}")
    return EngineFailed(f"the upstream failed: HTTP {status}")


def _listed(response: httpx.Response, name: str) -> Mapping[str, Any] | None:
    """The entry of a model in the answer to /models.

    Raises: EngineFailed: the answer is not a list of models.
    """
    try:
        entries = response.json()["data"]
        return next((entry for entry in entries if entry["id"] == name or name in entry.get("aliases", ())), None)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EngineFailed("the upstream's answer to /models is not a list of models") from None


def _context(asked: int, entry: Mapping[str, Any]) -> int:
    """Context in tokens: what is configured, or less if the upstream says so (vLLM and llama.cpp do)."""
    limit = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
    return min(asked, limit) if isinstance(limit, int) and limit > 0 else asked


def _logprobs(choice: Mapping[str, Any], wanted: int | None) -> tuple[TokenLogprob, ...]:
    """Log-probabilities in the form of chats (a list of `content`) or of completions (parallel lists)."""
    told = choice.get("logprobs")
    if wanted is None or not told:
        return ()
    if "tokens" not in told:
        return token_logprobs(told.get("content") or (), wanted)
    tops = told.get("top_logprobs") or [{}] * len(told["tokens"])
    return tuple(
        TokenLogprob(
            token_id=0,
            token=token,
            logprob=min(0.0, logprob or 0.0),
            top=tuple(TokenLogprob(0, rival, min(0.0, value)) for rival, value in list((top or {}).items())[:wanted]),
        )
        for token, logprob, top in zip(told["tokens"], told["token_logprobs"], tops, strict=False)
    )
