"""What a policy is. Values in, choice out: no clock, lock, log or metric inside.

A new one is a class in a file of its own under `policies`, with a line in `policies.POLICIES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

PREFIX_BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Ask:
    """What a policy may know of a request.

    Attributes:
        prompt_tokens: about; four bytes are one.
        answer_tokens: what it may be expected to generate: recent answers' mean, at most its max_tokens.
        session: its session's name, or "".
        prefix: hashes of the prompt's leading blocks of 64 tokens, each of all the text up to there, so that two requests that
            share the first n entries share that much text; short or empty where nothing is shared.
        arrived_s: when it came, monotonic seconds; infinite: it is not said.
    """

    prompt_tokens: int = 0
    answer_tokens: float = 0.0
    session: str = ""
    prefix: tuple[int, ...] = ()
    arrived_s: float = math.inf


class Candidate(Protocol):
    """What a policy may know of a worker. One object for as long as that life of the worker lasts."""

    @property
    def worker_id(self) -> str:
        """Name, unique in the fleet."""

    @property
    def slots(self) -> int:
        """Requests that it can run at once, from 1."""

    @property
    def in_flight(self) -> int:
        """This router's own open requests there."""

    @property
    def depth(self) -> int:
        """Requests there, running and waiting, as is known now: reported + sent since − done since, at least in_flight."""

    @property
    def reported(self) -> int:
        """Requests there, running and waiting, by its newest word alone."""

    @property
    def sent(self) -> int:
        """This router's own requests sent since that word."""

    @property
    def queue(self) -> float:
        """Smoothed number of requests there, this router's newest included."""

    @property
    def latency_s(self) -> float | None:
        """Smoothed time to first token; None before the first."""

    @property
    def pace_s(self) -> float | None:
        """Smoothed time between two tokens of one answer; None before the first."""

    @property
    def tokens_per_s(self) -> float:
        """Smoothed rate of tokens generated there, for everybody."""

    @property
    def finished_per_s(self) -> float:
        """Smoothed rate of answers finished there."""

    @property
    def failed_per_s(self) -> float:
        """Smoothed rate of requests that failed there through no fault of the client."""

    @property
    def kv_used(self) -> float | None:
        """Share of its key-value cache in use, 0 to 1; None where it does not say."""

    @property
    def queued_tokens(self) -> float:
        """Prompt tokens that wait there, by its newest report."""

    @property
    def own_tokens(self) -> float:
        """Tokens outstanding of this router's own requests there: prompts not read yet and answers still expected."""

    @property
    def own_prompt_tokens(self) -> float:
        """Prompt tokens of this router's own requests there that have no first token yet."""

    @property
    def sent_tokens(self) -> float:
        """Prompt tokens of this router's own requests sent since the newest report."""

    @property
    def draft_acceptance(self) -> float | None:
        """Smoothed share of drafted tokens that were kept, 0 to 1; None without a draft."""

    @property
    def stage_s(self) -> float:
        """Smoothed time that a request spends in further stages there (speech recognition, a vision tower), all together."""

    @property
    def edge_s(self) -> float:
        """Smoothed latency of the way to it, as this router sees it: to `started`, without the worker's own part."""


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter of a policy that may be tuned while it works, from `low` to `high`.

    Attributes:
        log: it counts in ratios, not in differences.
        whole: whole numbers only.
    """

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the bounds, 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        """The value at a share of the way, as `share`'s inverse."""
        value = self.low * (self.high / self.low) ** share if self.log else self.low + share * (self.high - self.low)
        return float(round(value)) if self.whole else value


class Policy:
    """Picks one of the workers that may take a request.

    The base of all: a subclass gives `pick`, and what else it needs. `candidates` are the workers that are eligible for the
    model, at least one. `now_s` is monotonic seconds. The other methods tell it what happened; by default they do nothing.
    """

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C | None:
        """One of them; None: let the request wait, and ask again when something changed."""
        raise NotImplementedError

    def keeps(self, candidate: Candidate, waiting: int) -> bool:
        """A worker has just taken a request (`started`), and so many wait for a slot there: whether the request shall stay.

        Where it does not stay although others wait, it is taken back: cancelled there and picked for again, which may also
        let it wait in the router. That is no failure of the worker.
        """
        return True

    knobs: Sequence[Knob] = ()  # what a tuner may turn
    waits = False  # whether `pick` ever lets a request wait

    def parameters(self) -> dict[str, float]:
        """The knobs' values now, by name."""
        return {}

    def tune(self, parameters: Mapping[str, float]) -> None:
        """Turn the knobs, from the next pick on."""

    def weights(self, candidates: Sequence[Candidate]) -> list[float]:
        """For each candidate its share of the next requests, as far as chance or capacity decide; they sum to 1."""
        return [1 / len(candidates)] * len(candidates)

    def changed(self, candidate: Candidate, rng: Random) -> None:
        """Something of a candidate changed: its depth, pace, slots. Also told when it is new."""

    def sent(self, candidate: Candidate, ask: Ask, now_s: float) -> None:
        """A request went to it."""

    def first_token(self, candidate: Candidate, took_s: float, now_s: float) -> None:
        """The first token of a request came, `took_s` after it was sent."""

    def ended(self, candidate: Candidate, took_s: float, ok: bool, now_s: float) -> None:
        """A request there ended, well, badly or cancelled (`ok` false), `took_s` after it was sent."""

    def probes(self, candidates: Sequence[C], rng: Random) -> Sequence[C]:
        """Workers to ask for their state now (a call of Worker.GetStatus each); asked after each pick."""
        return ()

    def probed(self, candidate: Candidate, in_flight: int, latency_s: float, now_s: float) -> None:
        """What such a worker answered: requests there, and its smoothed time to first token (0: none yet)."""
