"""The `simulated` engine: a latency model in place of a network. What load tests use.

Continuous batching as processor sharing: with b requests running, a decode step takes
step · (1 + growth · (b − 1) / (slots − 1)) and gives a token to each whose prompt was read when it began; prompts are read at
prefill_tokens_per_s, from the request's arrival.
What is said depends on seed, prompt and position alone, never on time or company, so that an answer can be compared with the
undisturbed one.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from random import Random

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import EngineFailed, NotFound, PromptTooLong
from services.worker.engine import End, EngineRequest, Gauges, Piece, TokenLogprob
from services.worker.text import StopScanner, Utf8Assembler

_WORDS = (
    "the",
    "river",
    "runs",
    "past",
    "old",
    "stones",
    "and",
    "small",
    "boats",
    "while",
    "people",
    "talk",
    "of",
    "rain",
)
_EMOJI = ("🦜", "🏰", "🌊")
_VOCABULARY = 50_000


@dataclass(eq=False)
class _Running:
    """A request in the batch."""

    request: EngineRequest
    prompt_tokens: int
    answer_tokens: int
    cut: bool  # the answer ends by max_tokens or context, not by itself
    ready_s: float  # when its prompt is read, by the loop's clock
    made: int = 0  # tokens that are due
    news: asyncio.Event = field(default_factory=asyncio.Event)


class SimulatedEngine:
    """Answers at the pace of the model; one task for the whole batch."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._own = settings.simulated
        self._contexts: dict[str, int] = {}
        self._running: set[_Running] = set()
        self._arrived = asyncio.Event()
        self._failures = Random(self._own.seed)  # noqa: S311  # repeatable on purpose
        self._stepper: asyncio.Task[None] | None = None

    async def load(self, model: ModelSettings, progress: Callable[[float], None]) -> int:
        took_s = self._own.load.total_seconds()
        for tenth in range(10):
            progress(tenth / 10)
            await asyncio.sleep(took_s / 10)
        progress(1.0)
        context = model.context_tokens or self._settings.context_tokens
        self._contexts[model.name] = context
        if self._stepper is None:
            self._stepper = asyncio.create_task(self._step_for_ever())
        return context

    async def unload(self, name: str) -> None:
        del self._contexts[name]

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Piece | End]:
        if self._failures.random() < self._own.fail_ratio:
            raise EngineFailed("this simulated request was to fail")
        running = self._admit(request)
        voice = _Voice(request, self._own.seed)
        scanner = StopScanner(request.sampling.stop)
        self._running.add(running)
        self._arrived.set()
        said = 0
        try:
            while said < running.answer_tokens:
                await running.news.wait()
                running.news.clear()
                while said < running.made:
                    token, text = voice.token(said)
                    said += 1
                    if said == running.answer_tokens:
                        text += voice.rest()
                    text, stopped = scanner.feed(text)
                    if said == running.answer_tokens and not stopped:
                        text += scanner.flush()
                    yield Piece(text, (token,), 1, voice.logprobs(token))
                    if stopped:
                        yield End("stop_sequence", running.prompt_tokens, said, stopped)
                        return
            yield End("length" if running.cut else "stop", running.prompt_tokens, said)
        finally:
            self._running.discard(running)

    def gauges(self) -> Gauges:
        contexts = list(self._contexts.values())
        held = sum(running.prompt_tokens + running.made for running in self._running.copy())
        room = self._settings.slots * max(contexts, default=0)
        return Gauges(kv_used_ratio=min(held / room, 1.0) if room else None)

    async def close(self) -> None:
        if self._stepper:
            self._stepper.cancel()
            await asyncio.gather(self._stepper, return_exceptions=True)

    def _admit(self, request: EngineRequest) -> _Running:
        prompt_tokens = _prompt_tokens(request)
        context = self._contexts.get(request.model)
        if context is None:
            raise NotFound("the model is not loaded", resource=("model", request.model))
        if prompt_tokens >= context:
            raise PromptTooLong(f"the prompt has {prompt_tokens} tokens, the model's context {context}", field="prompt")
        rng = Random(_digest(request, self._own.seed))  # noqa: S311  # repeatable on purpose
        natural = max(1, round(self._own.answer_tokens * math.exp(rng.gauss(0, self._own.answer_sigma))))
        room = min(request.sampling.max_tokens, context - prompt_tokens)
        ready_s = asyncio.get_running_loop().time() + prompt_tokens / self._own.prefill_tokens_per_s
        return _Running(request, prompt_tokens, min(natural, room), natural > room, ready_s)

    async def _step_for_ever(self) -> None:
        """One wake-up a step for the whole batch; steps that were slept over are made up for, not lost."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._running:
                self._arrived.clear()
                await self._arrived.wait()
            due_s = loop.time()
            while self._running:
                decoding = [running for running in self._running if running.ready_s <= due_s]
                if decoding:
                    due_s += self._step_s(len(self._running))
                else:  # on to the first that is ready; one may arrive meanwhile that is ready sooner
                    due_s = min(due_s + self._step_s(1), min(running.ready_s for running in self._running))
                await asyncio.sleep(due_s - loop.time())
                for running in decoding:
                    self._give(running)

    def _give(self, running: _Running) -> None:
        """Make one more token due; the last frees the place."""
        running.made += 1
        running.news.set()
        if running.made == running.answer_tokens:
            self._running.discard(running)

    def _step_s(self, batch: int) -> float:
        others = (batch - 1) / max(self._settings.slots - 1, 1)
        return self._own.step.total_seconds() * (1 + self._own.growth * others)


class _Voice:
    """Tokens of an answer and their text, by position."""

    def __init__(self, request: EngineRequest, seed: int) -> None:
        self._digest = _digest(request, seed)
        self._asked = request.sampling.logprobs
        self._bytes = Utf8Assembler()
        self._emoji: list[bytes] = []

    def token(self, position: int) -> tuple[int, str]:
        """Id and text of the token at a position; positions are asked for in order."""
        drawn = Random(self._digest * 31 + position)  # noqa: S311  # repeatable on purpose
        token = drawn.randrange(_VOCABULARY)
        if self._emoji:  # an emoji is four bytes in two tokens
            return token, self._bytes.feed(self._emoji.pop())
        if token % 16 == 0:
            data = _EMOJI[token % len(_EMOJI)].encode()
            self._emoji.append(data[2:])
            return token, self._bytes.feed(data[:2])
        return token, self._bytes.feed(_word(token).encode())

    def rest(self) -> str:
        """What is left of a character when the answer is cut."""
        return self._bytes.flush()

    def logprobs(self, token: int) -> tuple[TokenLogprob, ...]:
        """A log-probability for the token just said, if they were asked for."""
        if self._asked is None:
            return ()
        share = 0.4 + 0.55 * (token % 97) / 97
        rest = [(1 - share) / 2**place for place in range(1, self._asked)]
        rivals = [
            TokenLogprob((token + place) % _VOCABULARY, _word((token + place) % _VOCABULARY), math.log(part))
            for place, part in enumerate([share, *rest])
        ]
        return (TokenLogprob(token, _word(token), math.log(share), tuple(rivals[: self._asked])),)


def _word(token: int) -> str:
    return f" {_WORDS[token % len(_WORDS)]}"


def _digest(request: EngineRequest, seed: int) -> int:
    """A number for seed and prompt, the same in every process."""
    own = request.sampling.seed if request.sampling.seed is not None else seed
    text = repr((own, request.model, [(m.role, m.content) for m in request.messages], request.prompt))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _prompt_tokens(request: EngineRequest) -> int:
    """About four bytes a token."""
    size = len(request.prompt.encode("utf-8", "surrogatepass"))
    size += sum(len(message.content.encode("utf-8", "surrogatepass")) + 4 for message in request.messages)
    return max(1, size // 4)
