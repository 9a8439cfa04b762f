"""What the worker asks of an engine. An engine turns one request into pieces of text; it knows nothing of gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ladr.config import ModelSettings

Reason = Literal["stop", "length", "stop_sequence"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat; `role` is system, user, assistant or tool."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample, with every default filled in. `top_k` 0 is off; `logprobs` None gives none, n the n best as well."""

    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Continuation:
    """The part of an answer that the client has, made by another worker: at least one token.

    `token_ids` are `token_count` of them, or none. The tokens may complete more text than `text`: half a character, or what
    was held back as the possible beginning of a stop string.
    """

    token_ids: tuple[int, ...]
    token_count: int
    text: str


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request for a model that the engine has loaded. Without messages, `prompt` is taken raw (no chat template).

    With a `continuation` the answer goes on after it: its tokens count in `max_tokens` and as completion tokens.
    """

    id: str
    model: str
    sampling: Sampling
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    continuation: Continuation | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with the natural logarithm of its probability, and its rivals (whose own `top` is empty)."""

    token_id: int
    token: str
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """One or more tokens. `text` never splits a character; it is empty while one is still in parts.

    `token_ids` is empty where the engine does not tell them; `count` is right all the same. It is 0 only for text of earlier
    tokens that was held back as the possible beginning of a stop string and turned out to be none.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    count: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """How the answer ended; always the last event. The end-of-turn token is not in `completion_tokens`.

    `completion_tokens` has those of a continuation too, `prompt_tokens` has not.
    """

    reason: Reason
    prompt_tokens: int
    completion_tokens: int
    stop_sequence: str = ""
    cached_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Gauges:
    """What an engine tells of itself at any moment; None where it does not know."""

    kv_used_ratio: float | None = None
    drafted_tokens: int | None = None  # since the start, with a draft model
    accepted_tokens: int = 0  # of those, the ones that the model kept
    draft_paused: bool = False  # a draft is left out for now, since it loses time


class Engine(Protocol):
    """Runs models.

    The worker calls everything but `gauges` on its event loop, and never has more than `slots` of `generate` open at once.
    An engine may not block that loop for longer than a few milliseconds: it works in threads of its own.
    """

    async def load(self, model: ModelSettings, progress: Callable[[float], None]) -> int:
        """Load a model under `model.name` and return its context in tokens; `progress` takes 0 to 1 from any thread.

        Raises: InvalidRequest, NotFound: the source is of the wrong kind, outside the model root, or not there.
        """

    async def unload(self, name: str) -> None:
        """Free a model. The worker has seen to it that no request uses it."""

    def generate(self, request: EngineRequest) -> AsyncIterator[Piece | End]:
        """Answer: pieces, then one `End`. An async generator: closing it stops the work within 250 ms.

        With a continuation, only what follows it: no token of it again, and text that joins its text without a seam. Where it
        is the whole answer already, just the `End` (after text that the client lacks, if there is any).

        Raises: PromptTooLong, InvalidRequest: the request is at fault. CannotResume: the engine cannot go on with this
            answer; nothing was done for it. EngineFailed: the engine is at fault.
        """

    def gauges(self) -> Gauges:
        """Called from the reporter's thread; quick, and without waiting on the engine."""

    async def close(self) -> None:
        """Free everything. No request is open."""
