"""What a client has of an answer, so that another worker can go on with it."""

from __future__ import annotations

from ladr.errors import BrokenStream
from ladr.v1 import generation_pb2


class Transcript:
    """Deltas as they passed, not decoded until somebody needs them.

    Bounded by the answer's own max_tokens and by the engine's context.
    """

    def __init__(self) -> None:
        self._messages = 0
        self._fresh: list[bytes] = []
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._tokens = 0

    def add(self, message: bytes) -> None:
        """A delta goes to the client."""
        self._messages += 1
        self._fresh.append(message)

    def __len__(self) -> int:
        """How many deltas the client has."""
        return self._messages

    def tokens(self) -> int:
        """How many tokens the client has."""
        self._decode()
        return self._tokens

    def continuation(self) -> generation_pb2.Continuation:
        """For the next worker. Without ids if only some are known."""
        self._decode()
        whole = len(self._token_ids) == self._tokens
        return generation_pb2.Continuation(
            token_ids=self._token_ids if whole else (), token_count=self._tokens, text="".join(self._text)
        )

    def follows(self, message: bytes) -> None:
        """Check the first delta of the next worker, or its end.

        Raises: BrokenStream: it does not go on where the client is (an engine that knows nothing of continuations).
        """
        response = generation_pb2.GenerateResponse.FromString(message)
        at = response.delta.offset if response.HasField("delta") else response.finished.usage.completion_tokens
        if at != self.tokens():
            raise BrokenStream(f"the worker went on at token {at} instead of {self._tokens}")

    def _decode(self) -> None:
        for message in self._fresh:
            delta = generation_pb2.GenerateResponse.FromString(message).delta
            self._text.append(delta.text)
            self._token_ids.extend(delta.token_ids)
            self._tokens += delta.token_count
        self._fresh.clear()
