"""One request at one worker: counted from when it is bound to when it is over, exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ladr.routing.policy import Ask, Policy
from ladr.routing.row import Row
from ladr.v1 import generation_pb2


@dataclass(eq=False)
class Lease:
    """Holds a place at `row` from its making until `release`; use it with `with`, or release it in a `finally`.

    `revoke` ends it from outside when the worker is gone.
    """

    row: Row
    ask: Ask
    policy: Policy
    changed: Callable[[Row], object]
    clock: Callable[[], float] = time.monotonic
    first_token: bool = False
    revoked: bool = False
    ok: bool = False
    answer_tokens: int = 0
    cancel: Callable[[], object] = field(default=lambda: None)
    _decides: bool = False
    _told: bool = False
    _way_s: float = 0.0  # there and back
    _held: bool = True

    def __post_init__(self) -> None:
        self.sent_s = self.clock()
        self._decides = self.row.breaker.sent()
        self.row.leases.add(self)
        self.row.sends(self.ask.prompt_tokens, self.ask.answer_tokens, self.sent_s)
        self.policy.sent(self.row, self.ask, self.sent_s)
        self.changed(self.row)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def started(self, load: generation_pb2.Load | None) -> None:
        """The worker took it, and says how busy it is."""
        now_s = self.clock()
        self._way_s = now_s - self.sent_s
        self.row.started(self._way_s, now_s)
        if load is not None:
            self.row.load(load, self.sent_s, now_s)
            self.changed(self.row)

    def token(self) -> None:
        """A token came; the first counts."""
        if not self.first_token:
            self.first_token = True
            now_s = self.clock()
            self.row.served(now_s)
            self.row.reads(self.ask.prompt_tokens)
            self.policy.first_token(self.row, now_s - self.sent_s, now_s)

    def finished(self, answer_tokens: int, load: generation_pb2.Load | None) -> None:
        """The answer is complete; the load that came with that does not count it any more."""
        self.ok = True
        self.answer_tokens = answer_tokens
        if load is not None:
            now_s = self.clock()
            self.row.load(load, now_s - self._way_s, now_s)
            self._told = True

    def release(self) -> None:
        """Give the place back; a second call does nothing."""
        if not self._held:
            return
        self._held = False
        now_s = self.clock()
        if self._decides:
            self.row.breaker.settled()
        self.row.leases.discard(self)
        unread = 0 if self.first_token else self.ask.prompt_tokens
        self.row.ends(unread, self.ask.answer_tokens, self._told, now_s)
        self.policy.ended(self.row, now_s - self.sent_s, self.ok, now_s)
        self.changed(self.row)

    def revoke(self) -> None:
        """The worker is gone: the request shall go elsewhere."""
        if not self.revoked:
            self.revoked = True
            self.cancel()
