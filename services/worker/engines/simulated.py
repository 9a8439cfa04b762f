"""The `simulated` engine: a latency model in place of a network. What load tests use.

Continuous batching as processor sharing: with b requests running, a decode step takes
step · (1 + growth · (b − 1) / (slots − 1)) and gives a token to each whose prompt was read when it began; prompts are read at
prefill_tokens_per_s, from the request's arrival, without what the prefix cache holds. Where the cache of keys and values is
bounded, a request takes the room of its prompt and answer when it starts, and waits for it first come, first served.
What is said depends on seed, prompt and position alone, never on time or company, so that an answer can be compared with the
undisturbed one, and one that another worker began goes on as it would have there.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from ladr.config import ModelSettings, WorkerSettings
from ladr.errors import CannotResume, EngineFailed, NotFound
from services.worker.engine import Continuation, End, EngineRequest, Gauges, Piece, Reason, TokenLogprob
from services.worker.engines.prefixes import PrefixCache
from services.worker.resume import answer_limit, known_ids, lacking
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
    """A request that waits for room or is in the batch."""

    request: EngineRequest
    prompt_tokens: int
    answer_tokens: int
    cut: bool  # the answer ends by max_tokens or context, not by itself
    blocks: Sequence[int]  # of the prompt, for the prefix cache
    made: int  # tokens that are due
    cached: int = 0  # prompt tokens that were found and not read
    ready_s: float = math.inf  # when its prompt is read, by the loop's clock
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def room(self) -> int:
        """Tokens of prompt and whole answer."""
        return self.prompt_tokens + self.answer_tokens


class SimulatedEngine:
    """Answers at the pace of the model; one task for the whole batch."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._own = settings.simulated
        self._contexts: dict[str, int] = {}
        self._running: set[_Running] = set()
        self._waiting: deque[_Running] = deque()  # for room; bounded by the worker's slots
        self._prefixes = PrefixCache(self._own.prefix_cache_tokens)
        self._arrived = asyncio.Event()
        self._failures = Random(self._own.seed)  # noqa: S311  # repeatable on purpose
        self._stepper: asyncio.Task[None] | None = None
        self._slow_s = math.inf  # when it slows down, by the loop's clock

    async def load(self, model: ModelSettings, progress: Callable[[float], None]) -> int:
        took_s = self._own.load.total_seconds()
        for tenth in range(10):
            progress(tenth / 10)
            await asyncio.sleep(took_s / 10)
        progress(1.0)
        context = model.context_tokens or self._settings.context_tokens
        if self._own.kv_tokens:
            context = min(context, self._own.kv_tokens)  # a request alone always has room
        self._contexts[model.name] = context
        if self._stepper is None:
            self._slow_s = asyncio.get_running_loop().time() + self._own.slow_after.total_seconds()
            self._stepper = asyncio.create_task(self._step_for_ever())
        return context

    async def unload(self, name: str) -> None:
        del self._contexts[name]

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Piece | End]:
        if self._failures.random() < self._own.fail_ratio:
            raise EngineFailed("this simulated request was to fail")
        running = self._prepare(request)
        speech = _Speech(request, self._own.seed, running.answer_tokens)
        owed = _replay(speech, request.continuation) if request.continuation else ""
        if not speech.ended:
            self._waiting.append(running)
            self._start_those_that_fit()
        try:
            if owed:
                yield Piece(owed, (), 0)
            while not speech.ended:
                await running.news.wait()
                running.news.clear()
                while speech.said < running.made and not speech.ended:
                    yield speech.next()
            reason: Reason = "stop_sequence" if speech.stopped else "length" if running.cut else "stop"
            yield End(reason, running.prompt_tokens, speech.said, speech.stopped, running.cached)
        finally:
            self._leave(running)

    def gauges(self) -> Gauges:
        running = self._running.copy()
        if self._own.kv_tokens:
            return Gauges(kv_used_ratio=sum(one.room for one in running) / self._own.kv_tokens)
        room = self._settings.slots * max(list(self._contexts.values()), default=0)
        held = sum(one.prompt_tokens + one.made for one in running)
        return Gauges(kv_used_ratio=min(held / room, 1.0) if room else None)

    async def close(self) -> None:
        if self._stepper:
            self._stepper.cancel()
            await asyncio.gather(self._stepper, return_exceptions=True)

    def _prepare(self, request: EngineRequest) -> _Running:
        context = self._contexts.get(request.model)
        if context is None:
            raise NotFound("the model is not loaded", resource=("model", request.model))
        prompt = _prompt(request)
        prompt_tokens = max(1, len(prompt) // 4)
        room = answer_limit(request, prompt_tokens, context)
        known_ids(request, _VOCABULARY)
        rng = Random(_digest(request, self._own.seed))  # noqa: S311  # repeatable on purpose
        natural = max(1, round(self._own.answer_tokens * math.exp(rng.gauss(0, self._own.answer_sigma))))
        blocks = self._prefixes.blocks(request.model, prompt)
        made = request.continuation.token_count if request.continuation else 0
        return _Running(request, prompt_tokens, min(natural, room), natural > room, blocks, made)

    def _start_those_that_fit(self) -> None:
        """Begin to read the prompts of those that waited, as far as there is room."""
        now_s = asyncio.get_running_loop().time()
        held = sum(running.room for running in self._running)
        while self._waiting and (not self._own.kv_tokens or held + self._waiting[0].room <= self._own.kv_tokens):
            running = self._waiting.popleft()
            held += running.room
            running.cached = min(self._prefixes.found(running.blocks), running.prompt_tokens - 1)
            unread = running.prompt_tokens - running.cached + running.made
            running.ready_s = now_s + unread / self._own.prefill_tokens_per_s
            self._running.add(running)
            self._arrived.set()

    def _leave(self, running: _Running) -> None:
        """Take it out, wherever it is; others may have its room."""
        if running in self._waiting:
            self._waiting.remove(running)
        self._running.discard(running)
        self._start_those_that_fit()

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
                    due_s += self._step_s(len(self._running), due_s)
                else:  # on to the first that is ready; one may arrive meanwhile that is ready sooner
                    due_s = min(due_s + self._step_s(1, due_s), min(running.ready_s for running in self._running))
                await asyncio.sleep(due_s - loop.time())
                for running in decoding:
                    self._give(running)

    def _give(self, running: _Running) -> None:
        """Make one more token due; with the first its prompt has been read, and the last frees the place."""
        if running.blocks:
            self._prefixes.keep(running.blocks)
            running.blocks = ()
        running.made += 1
        running.news.set()
        if running.made == running.answer_tokens:
            self._leave(running)

    def _step_s(self, batch: int, now_s: float) -> float:
        others = (batch - 1) / max(self._settings.slots - 1, 1)
        slow = self._own.slow_factor if now_s >= self._slow_s else 1.0
        return self._own.step.total_seconds() * (1 + self._own.growth * others) * slow


class _Speech:
    """An answer as it is said, token by token: whole characters, stop strings held back.

    Attributes:
        said: tokens so far.
        stopped: the stop string that came, or "".
    """

    def __init__(self, request: EngineRequest, seed: int, length: int) -> None:
        self._voice = _Voice(request, seed)
        self._scanner = StopScanner(request.sampling.stop)
        self._length = length
        self.said = 0
        self.stopped = ""

    @property
    def ended(self) -> bool:
        return bool(self.stopped) or self.said == self._length

    def next(self) -> Piece:
        """The next token; with the last one all that was held back."""
        token, text = self._voice.token(self.said)
        self.said += 1
        last = self.said == self._length
        text, self.stopped = self._scanner.feed(text + self._voice.rest() if last else text)
        if last and not self.stopped:
            text += self._scanner.flush()
        return Piece(text, (token,), 1, self._voice.logprobs(token))


def _replay(speech: _Speech, continuation: Continuation) -> str:
    """Say again what the client has; gives the text that it lacks.

    Raises: CannotResume: this worker would have said something else (another seed).
    """
    pieces: list[Piece] = []
    while len(pieces) < continuation.token_count and not speech.ended:
        pieces.append(speech.next())
    ids = tuple(piece.token_ids[0] for piece in pieces)
    if len(ids) < continuation.token_count or continuation.token_ids not in ((), ids):
        raise CannotResume("this worker would not have begun the answer so")
    return lacking("".join(piece.text for piece in pieces), continuation.text)


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


def _prompt(request: EngineRequest) -> bytes:
    """The prompt as it is read, four bytes a token: of a message its role in one token, then its content."""
    turns = (f"{message.role:4.4}{message.content}" for message in request.messages)
    return "".join([request.prompt, *turns]).encode("utf-8", "surrogatepass")
