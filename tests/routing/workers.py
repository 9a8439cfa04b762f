"""A candidate of plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class Worker:
    worker_id: str
    slots: int = 8
    in_flight: int = 0
    depth: int = 0
    reported: int = 0
    sent: int = 0
    queue: float = 0.0
    latency_s: float | None = None
    pace_s: float | None = None
    tokens_per_s: float = 0.0
    finished_per_s: float = 0.0
    failed_per_s: float = 0.0
    kv_used: float | None = None
    queued_tokens: float = 0.0
    own_tokens: float = 0.0
    own_prompt_tokens: float = 0.0
    sent_tokens: float = 0.0
    draft_acceptance: float | None = None
    stage_s: float = 0.0
    edge_s: float = 0.0
