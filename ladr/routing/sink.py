"""What a router tells of its requests, once each; sinks turn it into logs, metrics and the like."""

from __future__ import annotations


class Sink:
    """Hears nothing. A subclass overrides what it wants. Models are served names or "other": never a client's text."""

    def ended(self, model: str, outcome: str) -> None:
        """A request ended: "ok", "cancelled" or the reason of its error."""

    def first_token(self, model: str, took_s: float, edge_s: float) -> None:
        """Its first token came, `took_s` after it arrived; its client is `edge_s` away, if it said so (else 0)."""

    def finished(self, model: str, took_s: float, tokens: int) -> None:
        """Its answer is complete: after the first piece of it came `tokens` more, 1 at least, within `took_s`."""

    def waited(self, model: str, seconds: float) -> None:
        """It had waited for a worker."""

    def retried(self, worker_id: str, reason: str, attempt: int) -> None:
        """It goes to another worker before its first token."""

    def resumed(self, worker_id: str, reason: str, tokens: int) -> None:
        """Another worker goes on with its answer, of which the client has so many tokens."""

    def taken_back(self, worker_id: str) -> None:
        """It would have waited at a worker, and is picked for again."""

    def hedged(self, won: bool) -> None:
        """A second worker was asked as well, and was the first to answer or not."""

    def fell_back(self, model: str, to: str) -> None:
        """Nobody could take it for its model, so another model answers."""

    def judged(self, model: str, confidence: float | None, escalated: bool) -> None:
        """A cascade has looked at its student's answer (None: the engine gives no probabilities)."""
