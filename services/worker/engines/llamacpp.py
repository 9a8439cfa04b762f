"""The `llamacpp` engine: GGUF models in this process, through xllamacpp.

The life of a request: a thread of the pool hands it to llama.cpp and stays there until the answer is complete. llama.cpp
calls that thread back with each token, and while it reads the prompt after each batch; `_Answer` makes pieces of that, and
the event loop is handed them one by one. A callback that returns True ends the generation, which is how stop strings and
cancellation work. Cancelling takes one batch at most, in the prompt too: on a CPU batches are therefore kept small.

An answer that another worker began goes on after its text, which the chat template is made to say at its very end: half a
character, and what was held back as the possible beginning of a stop string, is said anew and counted anew. A space at its
end is taken back first: it belongs to the token of the next word.

What xllamacpp does not allow: it holds the interpreter's lock while it makes and frees a model (0.3 s and 0.05 s for
135M), so that nothing else in the process runs. The file is read into the page cache beforehand, which keeps that short.
Its HTTP listener cannot be turned off: it gets a Unix socket in a private directory, which is deleted at once, and a random
key.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import xllamacpp

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import CannotResume, EngineFailed, InvalidRequest, LadrError, NotFound, PromptTooLong
from services.common.sources import locate_file
from services.worker.engine import End, EngineRequest, Gauges, Piece, Reason, TokenLogprob
from services.worker.engines.gguf_header import Header, read_header
from services.worker.resume import answer_limit
from services.worker.text import StopScanner, refuse_hopeless, token_logprobs

log = structlog.get_logger()

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else a failed assertion in ggml runs a debugger over the process

_CANCEL_S = 0.25
_CPU_BATCH = 16  # prompt tokens a batch: 0.1 s for 135M on one thread; larger ones are up to a quarter faster
_CONTEXT_STEP = 256  # llama.cpp rounds a slot's context up to a multiple of this
_READ_BYTES = 8 << 20
_SEEDS = 2**32 - 1  # the last 32-bit seed means "a random one"

_TOO_LONG = "exceed_context_size_error"
_SO_FAR = "ladr_so_far"  # what the chat template calls the text of the answer so far

Event = Piece | End | LadrError


@dataclass
class _Model:
    """A loaded model; `server` is llama.cpp's, or None once it is freed."""

    server: Any
    context: int
    continues_chats: bool  # its chat template is known, and says `_SO_FAR` at its end

    def free(self) -> None:
        self.server = None


class LlamaCppEngine:
    """One llama.cpp server a model, `slots` requests in each; the context of a slot is a multiple of 256 tokens."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._models: dict[str, _Model] = {}
        self._open: set[_Answer] = set()
        self._generators = ThreadPoolExecutor(settings.slots, "llamacpp")
        self._loader = ThreadPoolExecutor(1, "llamacpp-load")

    async def load(self, model: ModelSettings, progress: Callable[[float], None]) -> int:
        loaded = await asyncio.get_running_loop().run_in_executor(self._loader, self._load, model, progress)
        self._models[model.name] = loaded
        return loaded.context

    async def unload(self, name: str) -> None:
        model = self._models.pop(name)
        await asyncio.get_running_loop().run_in_executor(self._loader, model.free)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Piece | End]:
        model = self._models.get(request.model)
        if model is None:
            raise NotFound("the model is not loaded", resource=("model", request.model))
        refuse_hopeless(request, model.context)
        answer_limit(request, 1, model.context)
        if request.continuation and request.messages and not model.continues_chats:
            raise CannotResume("the model has no chat template of its own to go on with")
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()  # holds max_tokens pieces at most

        def emit(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        answer = _Answer(request)
        self._open.add(answer)
        work = loop.run_in_executor(self._generators, _run, model, answer, emit)

        def ended(done: asyncio.Future[None]) -> None:
            """Whatever ended the thread's work, the wait below ends too; after an end or an error nobody reads this."""
            if not done.cancelled() and (error := done.exception()):
                log.error("llamacpp_broke", request_id=request.id, reason=repr(error))
            events.put_nowait(EngineFailed("llama.cpp ended without finishing the answer"))

        work.add_done_callback(ended)
        try:
            while True:
                event = await events.get()
                if isinstance(event, LadrError):
                    raise event
                yield event
                if isinstance(event, End):
                    return
        finally:
            answer.cancelled.set()
            await asyncio.wait({work}, timeout=_CANCEL_S)
            self._open.discard(answer)

    def gauges(self) -> Gauges:
        room = self._settings.slots * sum(model.context for model in tuple(self._models.values()))
        held = sum(answer.prompt_tokens + answer.made for answer in tuple(self._open))
        return Gauges(kv_used_ratio=min(held / room, 1.0) if room else None)

    async def close(self) -> None:
        for name in tuple(self._models):
            await self.unload(name)
        await asyncio.get_running_loop().run_in_executor(self._loader, self._generators.shutdown)
        self._loader.shutdown()

    def _load(self, model: ModelSettings, progress: Callable[[float], None]) -> _Model:
        progress(0.0)
        path = locate_file(model.source, self._settings.model_root)
        header = read_header(path)
        asked = model.context_tokens or self._settings.context_tokens
        context = min(-(-asked // _CONTEXT_STEP) * _CONTEXT_STEP, header.context)
        _read_ahead(path, lambda ratio: progress(0.9 * ratio))
        with tempfile.TemporaryDirectory(prefix="ladr-") as private:
            try:
                server = xllamacpp.Server(self._parameters(path, header, context, f"{private}/llama.sock"))
            except (RuntimeError, ValueError):
                raise InvalidRequest(
                    "llama.cpp cannot load the source: damaged, of an unknown architecture, or too large for the memory",
                    field="source",
                ) from None
        _warm_up(server)
        progress(1.0)
        return _Model(server, context, bool(header.chat_template))

    def _parameters(self, path: Path, header: Header, context: int, socket: str) -> Any:
        settings = self._settings
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_parallel = settings.slots
        parameters.n_ctx = context * settings.slots
        parameters.n_gpu_layers = settings.gpu_layers
        for threads in (parameters.cpuparams, parameters.cpuparams_batch):
            threads.n_threads = settings.threads
        if settings.gpu_layers == 0 or not _has_gpu():
            parameters.n_batch = parameters.n_ubatch = _CPU_BATCH + settings.slots
        if header.chat_template:
            parameters.chat_template = header.chat_template.removesuffix("\n") + f"{{{{ {_SO_FAR} }}}}"
        parameters.fit_params = False  # the context is as configured, or the load fails
        parameters.cache_ram_mib = 0  # prompts are cached in the slots, not in further memory
        parameters.warmup = False
        parameters.force_pure_content_parser = True
        parameters.prefill_assistant = False  # else a last turn of the assistant is lost with that parser
        parameters.verbosity = -1
        parameters.hostnames = [socket]
        parameters.api_keys = [secrets.token_urlsafe(32)]
        parameters.n_threads_http = 1
        parameters.ui = parameters.endpoint_slots = False
        return parameters


class _Answer:
    """What llama.cpp has said of one request. Made on the event loop, then used by one thread alone.

    Attributes:
        prompt_tokens, made: tokens of the prompt, and tokens generated so far, for the gauges.
        cancelled: nobody wants the rest.
        ended: an End was given.
    """

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.cancelled = threading.Event()
        self.prompt_tokens = 0
        self.made = 0
        self.ended = False
        self._before = request.continuation.token_count if request.continuation else 0
        self._joins = request.continuation is None  # whether the text has been joined to what the client has
        self._given = 0
        self._cached = 0
        self._reason: Reason = "length"
        self._silent: tuple[TokenLogprob, ...] = ()  # tokens without text of their own that await the next piece
        self._scanner = StopScanner(request.sampling.stop)

    def take(self, chunk: Mapping[str, Any]) -> Iterator[Piece | End]:
        """The events in one chunk of an OpenAI stream.

        Raises: PromptTooLong, InvalidRequest, EngineFailed: the chunk is an error.
        """
        if error := chunk.get("error"):
            if not self._fills_context(error):
                raise _failure(error)
            self.prompt_tokens = error["n_prompt_tokens"]
            yield self._end("length")
            return
        self._count(chunk)
        if self.prompt_tokens and self._before == self.request.sampling.max_tokens:
            yield self._end("length")
            return
        choice: Mapping[str, Any] = next(iter(chunk.get("choices") or ()), {})
        if choice.get("finish_reason") == "stop":
            self._reason = "stop"
        alternatives = max(1, self.request.sampling.logprobs or 0)
        self._silent += token_logprobs((choice.get("logprobs") or {}).get("content") or (), alternatives)
        if text := choice.get("text") or choice.get("delta", {}).get("content"):
            yield from self._say(text)
        if (usage := chunk.get("usage")) and not self.ended:
            yield from self._finish(usage)

    def _fills_context(self, error: Mapping[str, Any]) -> bool:
        """Whether it is the answer so far that leaves no room, and not the prompt."""
        prompt = error.get("n_prompt_tokens", 0) - self._before
        return bool(self._before and error.get("type") == _TOO_LONG and prompt < error.get("n_ctx", 0))

    def _count(self, chunk: Mapping[str, Any]) -> None:
        if progress := chunk.get("prompt_progress"):
            self.prompt_tokens, self._cached = progress["total"], progress["cache"]  # with the answer so far
        if timings := chunk.get("timings"):
            self.made = timings["predicted_n"]

    def _say(self, text: str) -> Iterator[Piece | End]:
        """A piece for the tokens since the last; llama.cpp tells only the last of those that make up one character."""
        tokens, self._silent = self._silent, ()
        count, self._given = self.made - self._given, self.made
        text, stopped = self._scanner.feed(self._joined(text, tokens))
        if len(tokens) == count:
            yield Piece(text, tuple(token.token_id for token in tokens), count, self._logprobs(tokens))
        else:
            yield Piece(text, (), count)
        if stopped:
            yield self._end("stop_sequence", stopped)

    def _finish(self, usage: Mapping[str, Any]) -> Iterator[Piece | End]:
        self.made = usage["completion_tokens"]
        if self._reason == "stop":
            self.made = max(self._given, self.made - 1)  # the last was the end-of-turn token
        held = self._scanner.feed(self._joined("", self._silent))[0] + self._scanner.flush()
        if held or self.made > self._given:
            yield Piece(held, (), self.made - self._given)
        yield self._end(self._reason)

    def _end(self, reason: Reason, stopped: str = "") -> End:
        self.ended = True
        prompt = max(self.prompt_tokens - self._before, 1)
        return End(reason, prompt, self._before + self.made, stopped, min(self._cached, prompt))

    def _joined(self, text: str, tokens: tuple[TokenLogprob, ...]) -> str:
        """The text of these tokens; the first after a continuation with the white space that llama.cpp strips from the
        beginning of a chat's answer, and without the space that was taken back.
        """
        if self._joins:
            return text
        self._joins = True
        said = "".join(token.token for token in tokens)
        white = said[: len(said) - len(said.lstrip())]
        text = text if text.startswith(white) else white + text
        return text.removeprefix(_text_so_far(self.request)[1])

    def _logprobs(self, tokens: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...]:
        wanted = self.request.sampling.logprobs
        if wanted is None:
            return ()
        return tuple(TokenLogprob(t.token_id, t.token, t.logprob, t.top[:wanted]) for t in tokens)


def _run(model: _Model, answer: _Answer, emit: Callable[[Event], None]) -> None:
    """Have one request answered; returns when llama.cpp is done with it."""
    server = model.server
    failed = False

    def take(chunk: Mapping[str, Any]) -> bool:
        nonlocal failed
        if answer.cancelled.is_set():
            return True
        try:
            for event in answer.take(chunk):
                emit(event)
        except LadrError as error:
            failed = True
            emit(error)
        return failed or answer.ended

    if answer.cancelled.is_set() or server is None:
        return
    try:
        if answer.request.messages:
            server.handle_chat_completions(_body(answer.request), take)
        else:
            server.handle_completions(_body(answer.request), take)
    except (RuntimeError, ValueError):  # only what is raised before the first chunk gets here
        failed = True
        emit(InvalidRequest("the model's chat template refuses these messages", field="messages"))
    if not (failed or answer.ended or answer.cancelled.is_set()):
        emit(EngineFailed("llama.cpp ended without finishing the answer"))


def _body(request: EngineRequest) -> dict[str, Any]:
    """The request as llama.cpp takes it. Stop strings are ours: it does not say which one it met."""
    sampling = request.sampling
    count = request.continuation.token_count if request.continuation else 0
    text, _ = _text_so_far(request)
    body: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings_per_token": True,  # tells how many tokens a chunk stands for
        "return_progress": True,  # calls back while the prompt is read
        "max_tokens": min(max(sampling.max_tokens - count, 1), 2**31 - 1),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed % _SEEDS
    alternatives = max(1, sampling.logprobs or 0)  # token ids come with log-probabilities alone
    if request.messages:
        messages = [{"role": message.role, "content": message.content} for message in request.messages]
        return body | {
            "messages": messages,
            "chat_template_kwargs": {_SO_FAR: text},
            "reasoning_format": "none",
            "logprobs": True,
            "top_logprobs": alternatives,
        }
    return body | {"prompt": request.prompt + text, "logprobs": alternatives}


def _text_so_far(request: EngineRequest) -> tuple[str, str]:
    """The text of a continuation, and a space that is taken back from its end."""
    text = request.continuation.text if request.continuation else ""
    return (text[:-1], " ") if text.endswith(" ") else (text, "")


def _failure(error: Mapping[str, Any]) -> LadrError:
    """llama.cpp's error as ours; its text may quote the prompt and is left out."""
    if error.get("type") == _TOO_LONG:
        return PromptTooLong(
            f"the prompt has {error.get('n_prompt_tokens')} tokens, the model's context {error.get('n_ctx')}",
            field="prompt",
        )
    if error.get("code") == 400:
        return InvalidRequest("llama.cpp refuses the request")
    return EngineFailed("llama.cpp failed on the request")


def _read_ahead(path: Path, progress: Callable[[float], None]) -> None:
    """Bring a file into the page cache."""
    size = max(path.stat().st_size, 1)
    buffer = bytearray(_READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            progress(min(file.tell() / size, 1.0))


def _warm_up(server: Any) -> None:
    """Generate a token. Besides warming up, it waits for llama.cpp's loop: one that is freed before it begins never ends.

    Raises: EngineFailed: the model cannot generate.
    """
    if "choices" not in server.handle_completions({"prompt": "a", "max_tokens": 1}):
        raise EngineFailed("llama.cpp loaded the model but cannot generate with it")


def _has_gpu() -> bool:
    cpu = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    return any(device["type"] != cpu for device in xllamacpp.get_device_info())
