"""What became of the requests that a model got: for those who compare two models behind one name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta

from ladr.v1 import router_pb2

# Endings that say nothing of the model: the client went away, or asked for what cannot be.
NOT_ITS_FAULT = frozenset({"cancelled", "invalid_request", "prompt_too_long", "not_found", "message_too_large"})
_SHORTEST_S = 1e-4  # what came at once with what was before has a logarithm that says nothing


@dataclass
class Logs:
    """Sums over the natural logarithms of times in seconds."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, took_s: float) -> None:
        log = math.log(max(took_s, _SHORTEST_S))
        self.count += 1
        self.total += log
        self.squares += log * log

    def message(self) -> router_pb2.LogTotals:
        return router_pb2.LogTotals(count=self.count, sum=self.total, sum_of_squares=self.squares)


@dataclass
class Tally:
    """Counts since the process began."""

    succeeded: int = 0
    failed: int = 0
    first_tokens_s: float = 0.0
    first_tokens: Logs = field(default_factory=Logs)
    output_tokens: Logs = field(default_factory=Logs)

    def ended(self, outcome: str) -> None:
        """A request ended: "ok", "cancelled" or the reason of its error."""
        if outcome == "ok":
            self.succeeded += 1
        elif outcome not in NOT_ITS_FAULT:
            self.failed += 1

    def first_token(self, took_s: float) -> None:
        self.first_tokens_s += took_s
        self.first_tokens.add(took_s)

    def finished(self, took_s: float, tokens: int) -> None:
        """An answer is complete; `tokens` came within `took_s` after its first piece."""
        self.output_tokens.add(took_s / tokens)

    def message(self, model: str) -> router_pb2.ModelTally:
        made = router_pb2.ModelTally(
            model=model,
            succeeded_total=self.succeeded,
            failed_total=self.failed,
            time_to_first_token_logs=self.first_tokens.message(),
            time_per_output_token_logs=self.output_tokens.message(),
        )
        made.time_to_first_token.count = self.first_tokens.count
        made.time_to_first_token.sum.FromTimedelta(timedelta(seconds=self.first_tokens_s))
        return made
