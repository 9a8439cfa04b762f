"""What became of the requests that a model got: for those who compare two models behind one name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ladr.v1 import router_pb2

# Endings that say nothing of the model: the client went away, or asked for what cannot be.
NOT_ITS_FAULT = frozenset({"cancelled", "invalid_request", "prompt_too_long", "not_found", "message_too_large"})


@dataclass
class Tally:
    """Counts since the process began."""

    succeeded: int = 0
    failed: int = 0
    first_tokens: int = 0
    first_tokens_s: float = 0.0

    def ended(self, outcome: str) -> None:
        """A request ended: "ok", "cancelled" or the reason of its error."""
        if outcome == "ok":
            self.succeeded += 1
        elif outcome not in NOT_ITS_FAULT:
            self.failed += 1

    def first_token(self, took_s: float) -> None:
        self.first_tokens += 1
        self.first_tokens_s += took_s

    def message(self, model: str) -> router_pb2.ModelTally:
        made = router_pb2.ModelTally(model=model, succeeded_total=self.succeeded, failed_total=self.failed)
        made.time_to_first_token.count = self.first_tokens
        made.time_to_first_token.sum.FromTimedelta(timedelta(seconds=self.first_tokens_s))
        return made
