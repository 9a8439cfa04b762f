"""What a trainer gives up on before it wastes a step."""

from __future__ import annotations


class Refused(Exception):
    """The job cannot be done as it is asked for.

    Attributes:
        reason: a word for programs, as in `DistillError.reason`: VOCABULARY_MISMATCH, ALL_LABELS_MASKED…
        message: one sentence for a person, with what to do.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
