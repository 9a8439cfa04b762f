"""Whether a draft pays: measured while it works, so that one that loses time is left out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median

DRAFTED_ROUNDS = 16  # that a judgement needs, and looks back on
PLAIN_ROUNDS = 4
PLAIN_EVERY = 64  # rounds: one of them is plain, to know what that takes by now
FIRST_PAUSE = 256  # plain rounds after a lost judgement; twice as many after each further one
LAST_PAUSE = 65_536


@dataclass
class _Record:
    """What rounds of about one number of rows took."""

    drafted_s: deque[float] = field(default_factory=lambda: deque(maxlen=DRAFTED_ROUNDS))
    gained: deque[float] = field(default_factory=lambda: deque(maxlen=DRAFTED_ROUNDS))  # tokens for a row
    reading_s: deque[float] = field(default_factory=lambda: deque(maxlen=DRAFTED_ROUNDS))  # the draft's prompts
    plain_s: deque[float] = field(default_factory=lambda: deque(maxlen=PLAIN_ROUNDS))
    rounds: int = 0
    unpaid_s: float = 0.0  # read for a drafted round that did not come yet
    paused: int = 0  # plain rounds yet to go before the next trial
    pause: int = FIRST_PAUSE

    @property
    def known(self) -> bool:
        return len(self.drafted_s) == DRAFTED_ROUNDS and len(self.plain_s) == PLAIN_ROUNDS

    @property
    def loses(self) -> bool:
        """A drafted round takes longer than the plain ones that would give as much.

        Prompts count by their mean: few rounds read one, and each is paid for by all that follow.
        """
        return median(self.drafted_s) + fmean(self.reading_s) > median(self.plain_s) * fmean(self.gained)


class Governor:
    """Says before each round whether to draft, and hears after it what it brought.

    A drafted round costs passes of the draft and gives more than one token a row; it pays while the tokens make up for the
    time. How much that is depends on how many rows share a pass, so numbers of rows are judged apart, by powers of two.
    Medians, since a shared machine stumbles.
    """

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        self._last = _Record()

    @property
    def paused(self) -> bool:
        """The draft was left out in the last round since it loses time."""
        return self._last.paused > 0

    def wants(self, rows: int) -> bool:
        """Whether the next round, of that many rows, shall be drafted."""
        record = self._last = self._records.setdefault(rows.bit_length(), _Record())
        if record.paused:
            return False
        if len(record.plain_s) < PLAIN_ROUNDS:
            return record.rounds % 4 != 3
        return record.rounds % PLAIN_EVERY != 0

    def took(self, rows: int, tokens: int, elapsed_s: float, drafted: bool, reading_s: float = 0.0) -> None:
        """A round of that many rows gave so many tokens. `reading_s`: what the draft took to read prompts, beside it."""
        record = self._records.setdefault(rows.bit_length(), _Record())
        record.rounds += 1
        if not drafted:
            record.unpaid_s += reading_s
            record.plain_s.append(elapsed_s)
            record.paused = max(record.paused - 1, 0)
            return
        record.drafted_s.append(elapsed_s)
        record.gained.append(tokens / rows)
        record.reading_s.append(record.unpaid_s + reading_s)
        record.unpaid_s = 0.0
        if not record.known:
            return
        if record.loses:
            record.paused = record.pause
            record.pause = min(2 * record.pause, LAST_PAUSE)
            record.drafted_s.clear()
            record.gained.clear()
            record.reading_s.clear()
        else:
            record.pause = FIRST_PAUSE
