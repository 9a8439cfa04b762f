"""The `transformers` engine: safetensors models (students, drafts) and dequantised GGUF, on CPU or GPU.

Each model has a thread that owns its batch: the event loop hands it requests and takes its tokens, and waits for nothing.
Weights come from safetensors (a student's INT8 form, too) or GGUF alone, and no code that lies beside a model is run.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import EngineFailed, InvalidRequest, LadrError
from services.common import weights as files
from services.common.int8 import form as int8
from services.common.int8.notes import Damaged, is_there
from services.common.sources import locate
from services.worker.engine import End, EngineRequest, Gauges, Piece, TokenLogprob
from services.worker.engines.batching import Batch, Draft, Sequence, Step
from services.worker.engines.cache import Reader
from services.worker.resume import answer_limit, catch_up, needed_ids
from services.worker.text import AnswerText, refuse_hopeless

log = structlog.get_logger()

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CLOSE_S = 10.0
_FAILED = EngineFailed("the engine failed on this request")
_BROKEN = EngineFailed("the model gives no finite logits: its weights are broken")


@dataclass(eq=False)
class _Answer:
    """A request on its way through a model's thread; `emit` puts an event before the event loop."""

    request: EngineRequest
    emit: Callable[[Piece | End | LadrError], None]
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class _Running:
    """An answer in the batch, and how far its text is."""

    answer: _Answer
    sequence: Sequence
    text: AnswerText


class TransformersEngine:
    """Continuous batching of our own over transformers models (see `batching`)."""

    def __init__(self, settings: WorkerSettings) -> None:
        torch.set_num_threads(settings.threads)
        self._settings = settings
        self._device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._models: dict[str, _Model] = {}
        self._drafted = self._accepted = 0  # of models that were unloaded

    async def load(self, model: ModelSettings, progress: Callable[[float], None]) -> int:
        loaded = await asyncio.to_thread(self._load, model, progress)
        self._models[model.name] = loaded
        loaded.start()
        return loaded.batch.context

    async def unload(self, name: str) -> None:
        model = self._models.pop(name)
        await asyncio.to_thread(model.close)
        if draft := model.batch.draft:
            self._drafted += draft.drafted
            self._accepted += draft.accepted

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Piece | End]:
        model = self._models[request.model]
        refuse_hopeless(request, model.batch.context)
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Piece | End | LadrError] = asyncio.Queue()  # holds max_tokens pieces at most

        def emit(event: Piece | End | LadrError) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        answer = _Answer(request, emit)
        model.submit(answer)
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
            model.nudge()

    def gauges(self) -> Gauges:
        models = list(self._models.values())
        room = sum(model.batch.slots * model.batch.context for model in models)
        drafts = [model.batch.draft for model in models if model.batch.draft]
        known = bool(drafts or self._drafted)
        return Gauges(
            kv_used_ratio=sum(model.held_tokens for model in models) / room if room else None,
            drafted_tokens=self._drafted + sum(draft.drafted for draft in drafts) if known else None,
            accepted_tokens=self._accepted + sum(draft.accepted for draft in drafts),
            draft_paused=any(draft.governor.paused for draft in drafts),
        )

    async def close(self) -> None:
        for name in list(self._models):
            await self.unload(name)

    def _load(self, model: ModelSettings, progress: Callable[[float], None]) -> _Model:
        network, tokenizer = self._read(model.name, model.source, "source")
        progress(0.7 if model.draft else 0.9)
        context = min(
            model.context_tokens or self._settings.context_tokens,
            int(getattr(network.config, "max_position_embeddings", 0)) or 1 << 30,
        )
        draft = self._draft(model, network, tokenizer, context) if model.draft else None
        progress(0.9)
        batch = Batch(self._reader(network, context), self._settings.slots, context, draft)
        return _Model(model.name, tokenizer, _vocabulary(network), batch, _ends(network, tokenizer))

    def _draft(self, model: ModelSettings, network: Any, tokenizer: Any, context: int) -> Draft:
        small, words = self._read(model.name, model.draft, "draft")
        if _vocabulary(small) != _vocabulary(network) or words.get_vocab() != tokenizer.get_vocab():
            raise InvalidRequest("the draft has another vocabulary than the model", field="draft")
        if int(getattr(small.config, "max_position_embeddings", 0) or context) < context:
            raise InvalidRequest("the draft has a shorter context than the model", field="draft")
        return Draft(self._reader(small, context), model.draft_tokens)

    def _read(self, name: str, source: str, field: str) -> tuple[Any, Any]:
        """Network and tokenizer of a source. Raises: InvalidRequest, NotFound: by that field."""
        where, gguf = locate(source, self._settings.model_root, self._settings.allow_hub)
        options: dict[str, Any] = {"gguf_file": gguf} if gguf else {}
        try:
            config = files.config(AutoConfig, where, **options)
            with files.readable(where):
                tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options)
            _refuse_other_caches(config)
            if not gguf and is_there(Path(where)):
                return int8.read(Path(where), self._dtype(config), self._device), tokenizer
            weights = files.network(
                AutoModelForCausalLM, where, dtype=self._dtype(config), **(options or {"use_safetensors": True})
            )
        except Damaged as error:
            raise InvalidRequest(f"the {field} is damaged: {error}", field=field) from error
        except files.Unreadable as error:
            log.warning("model_unreadable", model=name, reason=str(error))
            raise InvalidRequest(
                f"the {field} is no model that transformers can load from safetensors or GGUF: {error}", field=field
            ) from error
        return weights.to(self._device).eval().requires_grad_(False), tokenizer

    def _reader(self, network: Any, context: int) -> Reader:
        return Reader(network, network.config.num_hidden_layers, self._settings.slots, context)

    def _dtype(self, config: Any) -> torch.dtype:
        if self._settings.dtype != "auto":
            return _DTYPES[self._settings.dtype]
        if self._device == "cpu":
            return torch.float32
        own = getattr(config, "dtype", None)
        return own if isinstance(own, torch.dtype) else torch.bfloat16


class _Model(threading.Thread):
    """One loaded model and the thread that runs its batch."""

    def __init__(self, name: str, tokenizer: Any, vocabulary: int, batch: Batch, ends: frozenset[int]) -> None:
        super().__init__(name=f"transformers-{name}", daemon=True)
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = ends
        self._arrivals: queue.SimpleQueue[_Answer | None] = queue.SimpleQueue()  # bounded by the worker's slots
        self._waiting: deque[_Answer] = deque()
        self._running: dict[Sequence, _Running] = {}
        self._closing = False
        self._ended = False
        self._ending = threading.Lock()
        self.batch = batch
        self.held_tokens = 0

    def submit(self, answer: _Answer) -> None:
        with self._ending:
            if self._ended:
                answer.emit(_FAILED)
            else:
                self._arrivals.put(answer)

    def nudge(self) -> None:
        """Look at the cancellations."""
        self._arrivals.put(None)

    def close(self) -> None:
        self._closing = True
        self.nudge()
        self.join(_CLOSE_S)

    def run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except Exception:
            log.exception("model_broke", model=self.name)
        with self._ending:
            self._ended = True
        self._listen(wait=False)
        for answer in [*(running.answer for running in self._running.values()), *self._waiting]:
            answer.emit(_FAILED)

    def _turn(self) -> None:
        """Hear of new requests and cancellations, then take one step."""
        self._listen(wait=not (self._running or self._waiting))
        for running in list(self._running.values()):
            if running.answer.cancelled.is_set():
                self._drop(running)
        while self._waiting and len(self.batch) < self.batch.slots:
            self._admit(self._waiting.popleft())
        try:
            steps = self.batch.step()
        except Exception:
            log.exception("step_broke", model=self.name)
            for running in list(self._running.values()):
                running.answer.emit(_FAILED)
                self._drop(running)
            steps = []
        for step in steps:
            self._take(step)
        self.held_tokens = self.batch.held_tokens

    def _listen(self, wait: bool) -> None:
        """Take what has arrived; wait for something if there is nothing to do."""
        while wait or not self._arrivals.empty():
            answer = self._arrivals.get()
            wait = False
            if answer is not None:
                self._waiting.append(answer)

    def _admit(self, answer: _Answer) -> None:
        if answer.cancelled.is_set():
            return
        try:
            sequence = self._sequence(answer.request)
        except LadrError as error:
            answer.emit(error)
            return
        except Exception:  # a chat template may fail in any way
            log.exception("prompt_broke", model=self.name)
            answer.emit(InvalidRequest("the model's chat template does not take these messages", field="messages"))
            return
        running = _Running(answer, sequence, AnswerText(self._decode, answer.request.sampling.stop))
        self._running[sequence] = running
        self.batch.add(sequence)
        limit = sequence.limit - sequence.prompt_length
        for event in catch_up(running.text, answer.request, sequence.prompt_length, limit, self._ends):
            answer.emit(event)
            if isinstance(event, End):
                self._drop(running)

    def _sequence(self, request: EngineRequest) -> Sequence:
        if request.messages:
            turns = [{"role": m.role, "content": m.content} for m in request.messages]
            ids = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
        else:
            ids = self._tokenizer(request.prompt)["input_ids"]
        limit = len(ids) + answer_limit(request, len(ids), self.batch.context)
        return Sequence([*ids, *needed_ids(request, self._vocabulary)], len(ids), request.sampling, limit)

    def _decode(self, ids: Ids[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _take(self, step: Step) -> None:
        """Emit the text that a new token completes, and the end if it is one."""
        sequence = step.sequence
        running = self._running.get(sequence)
        if running is None:
            return  # it ended with a token before, in the same step
        if step.token is None:
            running.answer.emit(_BROKEN)
            self._drop(running)
            return
        made = step.length - sequence.prompt_length
        if step.token in self._ends:
            self._end(running, End("stop", sequence.prompt_length, made - 1))
            return
        text, stopped = running.text.feed(step.token)
        full = step.length >= sequence.limit
        if full and not stopped:
            text += running.text.flush()
        running.answer.emit(Piece(text, (step.token,), 1, self._logprobs(step)))
        if stopped:
            self._end(running, End("stop_sequence", sequence.prompt_length, made, stopped))
        elif full:
            self._end(running, End("length", sequence.prompt_length, made))

    def _end(self, running: _Running, end: End) -> None:
        if held := running.text.flush():
            running.answer.emit(Piece(held, (), 0))
        running.answer.emit(end)
        self._drop(running)

    def _logprobs(self, step: Step) -> tuple[TokenLogprob, ...]:
        if step.logprob is None:
            return ()
        named = [replace(one, token=self._tokenizer.decode([one.token_id])) for one in step.logprob.top]
        return (replace(step.logprob, token=self._tokenizer.decode([step.token]), top=tuple(named)),)

    def _drop(self, running: _Running) -> None:
        del self._running[running.sequence]
        self.batch.remove(running.sequence)


def _vocabulary(network: Any) -> int:
    return int(network.get_input_embeddings().num_embeddings)


def _ends(network: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a turn, by the model's generation settings and its tokenizer."""
    given = getattr(network.generation_config, "eos_token_id", None)
    ends = set(given) if isinstance(given, list) else {given}
    return frozenset(int(one) for one in ends | {tokenizer.eos_token_id} if one is not None)


def _refuse_other_caches(config: Any) -> None:
    """Raises: InvalidRequest: a layer keeps something else than the keys and values of all tokens."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        raise InvalidRequest("this engine serves models of plain attention only; use vllm for this one", field="source")
