"""What a worker counts of its own work. Written by the event loop, read by the reporter's thread: one lock."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Sum and count of a latency since the start, in seconds."""

    count: int = 0
    sum_s: float = 0.0

    def plus(self, seconds: float, samples: int = 1) -> Totals:
        return Totals(self.count + samples, self.sum_s + seconds)


@dataclass(frozen=True, slots=True)
class Counts:
    """A consistent view of all counts."""

    time_to_first_token: Totals = Totals()
    time_per_output_token: Totals = Totals()
    end_to_end: Totals = Totals()
    tokens: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0  # read, of the answers that finished


class Stats:
    """Counts of one incarnation; times are monotonic seconds given by the caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ttft = Totals()
        self._tpot = Totals()
        self._e2e = Totals()
        self._tokens = 0
        self._finished = 0
        self._failed = 0
        self._cancelled = 0
        self._prompt_tokens = 0
        self._recent: deque[tuple[float, int]] = deque()  # (time, tokens before), an entry each tenth of the window

    def first_token(self, since_arrival_s: float) -> None:
        """The first token of an answer came."""
        with self._lock:
            self._ttft = self._ttft.plus(since_arrival_s)

    def generated(self, tokens: int, now_s: float) -> None:
        """More tokens came."""
        with self._lock:
            if not self._recent or now_s - self._recent[-1][0] >= WINDOW_S / 10:
                self._recent.append((now_s, self._tokens))
            self._tokens += tokens

    def paced(self, tokens: int, took_s: float) -> None:
        """`tokens` tokens after the first of an answer took this long together."""
        with self._lock:
            self._tpot = self._tpot.plus(took_s, tokens)

    def finished(self, took_s: float, prompt_tokens: int) -> None:
        """An answer is complete; so many tokens of its prompt were read, those found in a cache not counted."""
        with self._lock:
            self._finished += 1
            self._prompt_tokens += prompt_tokens
            self._e2e = self._e2e.plus(took_s)

    def failed(self) -> None:
        """A request failed through no fault of its client."""
        with self._lock:
            self._failed += 1

    def cancelled(self) -> None:
        """A request was cancelled or its deadline passed."""
        with self._lock:
            self._cancelled += 1

    def counts(self) -> Counts:
        """All counts at one moment."""
        with self._lock:
            return Counts(
                self._ttft,
                self._tpot,
                self._e2e,
                self._tokens,
                self._finished,
                self._failed,
                self._cancelled,
                self._prompt_tokens,
            )

    def tokens_per_second(self, now_s: float) -> float:
        """Tokens generated a second, over the last second."""
        with self._lock:
            while self._recent and now_s - self._recent[0][0] > WINDOW_S:
                self._recent.popleft()
            if not self._recent:
                return 0.0
            return (self._tokens - self._recent[0][1]) / WINDOW_S
