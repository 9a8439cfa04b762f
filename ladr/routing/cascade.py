"""Cascade: a student answers first, and its teacher if the student is not confident.

Confidence is the mean log-probability of the answer's first tokens. The threshold is given, or follows a share of requests
that the teacher is to get: then it is that quantile of the recent confidences.
Source: FrugalGPT (Chen et al. 2023) for the idea;
"Language Model Cascades" (Gupta et al. 2024) for the mean token log-probability.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from ladr.v1 import generation_pb2

WINDOW = 512  # confidences that a share is calibrated from
LEAST = 32  # of them, before the share says anything: until then the fixed threshold does


class Threshold:
    """When a student is not confident enough.

    Args: fixed: escalate below this, in nats a token; used until `share` is calibrated. share: of the requests that shall be
    escalated, 0 to 1; None: the fixed threshold alone.
    """

    def __init__(self, fixed: float, share: float | None) -> None:
        self._fixed = fixed
        self._share = share
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    @property
    def value(self) -> float:
        if self._share is None or len(self._sorted) < LEAST:
            return self._fixed
        if self._share >= 1:
            return float("inf")
        return self._sorted[int(self._share * len(self._sorted))]

    def escalates(self, confidence: float) -> bool:
        """Whether an answer of this confidence is not good enough; the confidence is learnt from."""
        decided = confidence < self.value
        self._recent.append(confidence)
        insort(self._sorted, confidence)
        if len(self._recent) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        return decided


class Listener:
    """Hears the first tokens of a student's answer. Holds its messages back until it is judged."""

    def __init__(self, tokens: int) -> None:
        self._wanted = tokens
        self._tokens = 0
        self._sum = 0.0
        self._known = 0
        self.held: list[bytes] = []

    def hear(self, message: bytes) -> bool:
        """Take a message; true once enough was heard to judge."""
        self.held.append(message)
        response = generation_pb2.GenerateResponse.FromString(message)
        if response.HasField("delta"):
            self._tokens += response.delta.token_count
            for one in response.delta.logprobs:
                self._sum += one.logprob
                self._known += 1
        return response.HasField("finished") or self._tokens >= self._wanted

    @property
    def confidence(self) -> float | None:
        """Mean log-probability a token, in nats; None where the engine gives none."""
        return self._sum / self._known if self._known else None


def without_logprobs(message: bytes) -> bytes:
    """A message as the client asked for it."""
    response = generation_pb2.GenerateResponse.FromString(message)
    if not response.delta.logprobs:
        return message
    del response.delta.logprobs[:]
    return response.SerializeToString()
