"""What adds to or takes from the cost of sending a request to a worker, in seconds. Each is one small class.

A new one: a class here, or `package.module:Class` in `router.dimensions`; nothing else needs to know.
"""

from __future__ import annotations

import pkgutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from ladr.routing.policy import PREFIX_BLOCK_TOKENS, Ask, Candidate

ANSWER_TOKENS = 128  # costs are of an answer of so many tokens
READ_TOKENS = (
    48  # of a prompt cost as much as one of the answer: they are read faster, but the first token waits for them
)
MAX_BLOCKS = 65_536
MAX_SESSIONS = 16_384
MAX_HOLDERS = 4  # workers looked at for one prompt


class Dimension:
    """The base of all; by default nothing costs anything."""

    def cost_s(self, candidate: Candidate) -> float:
        """Of any request there. Asked whenever something of the worker changed, so it may depend on the worker alone."""
        return 0.0

    def concerns(self, ask: Ask) -> Iterable[Candidate]:
        """The few workers for which this request is another than any."""
        return ()

    def ask_cost_s(self, candidate: Candidate, ask: Ask) -> float:
        """What this request costs there more than any other; under 0: less. Asked for the best and all that are concerned."""
        return 0.0

    def sent(self, candidate: Candidate, ask: Ask) -> None:
        """The request went there."""


class KvUse(Dimension):
    """0.15 s · k / (1 − k), k the share of the key-value cache in use. Source: `least_load` of the SGLang model gateway."""

    def cost_s(self, candidate: Candidate) -> float:
        used = min(candidate.kv_used or 0.0, 0.99)
        return 0.15 * used / (1 - used)


class Stages(Dimension):
    """What a request spends in further stages there."""

    def cost_s(self, candidate: Candidate) -> float:
        return candidate.stage_s


class Edge(Dimension):
    """The way to the worker and back."""

    def cost_s(self, candidate: Candidate) -> float:
        return candidate.edge_s


class DraftAcceptance(Dimension):
    """A draft that is rarely accepted: (1 − acceptance) · pace · answer · 1/4. The measured pace has most of it already."""

    def cost_s(self, candidate: Candidate) -> float:
        if candidate.draft_acceptance is None:
            return 0.0
        return (1 - candidate.draft_acceptance) * (candidate.pace_s or 0.0) * ANSWER_TOKENS / 4


class Prefix(Dimension):
    """Tokens of the prompt that a worker has read before need not be read again: −held · pace / 48.

    Which worker got which block last, of the newest 65,536 blocks. It guesses: the worker may have forgotten them.
    """

    def __init__(self) -> None:
        self._holders: OrderedDict[int, Candidate] = OrderedDict()

    def concerns(self, ask: Ask) -> Iterable[Candidate]:
        found: dict[int, Candidate] = {}
        for block in reversed(ask.prefix):
            holder = self._holders.get(block)
            if holder is not None:
                found[id(holder)] = holder
                if len(found) == MAX_HOLDERS:
                    break
        return found.values()

    def ask_cost_s(self, candidate: Candidate, ask: Ask) -> float:
        for blocks in range(len(ask.prefix), 0, -1):
            if self._holders.get(ask.prefix[blocks - 1]) is candidate:
                held = min(blocks * PREFIX_BLOCK_TOKENS, ask.prompt_tokens)
                return -held * (candidate.pace_s or 0.0) / READ_TOKENS
        return 0.0

    def sent(self, candidate: Candidate, ask: Ask) -> None:
        for block in ask.prefix:
            self._holders[block] = candidate
            self._holders.move_to_end(block)
        while len(self._holders) > MAX_BLOCKS:
            self._holders.popitem(last=False)


class Session(Dimension):
    """The worker that had the session's last request is worth 50 ms: it may hold what no prefix tells, such as an image."""

    WORTH_S = 0.05

    def __init__(self) -> None:
        self._last: OrderedDict[str, Candidate] = OrderedDict()

    def concerns(self, ask: Ask) -> Iterable[Candidate]:
        last = self._last.get(ask.session)
        return () if last is None else (last,)

    def ask_cost_s(self, candidate: Candidate, ask: Ask) -> float:
        return -self.WORTH_S if self._last.get(ask.session) is candidate else 0.0

    def sent(self, candidate: Candidate, ask: Ask) -> None:
        if ask.session:
            self._last[ask.session] = candidate
            self._last.move_to_end(ask.session)
            if len(self._last) > MAX_SESSIONS:
                self._last.popitem(last=False)


DIMENSIONS: Mapping[str, Callable[[], Dimension]] = {
    "kv": KvUse,
    "stages": Stages,
    "edge": Edge,
    "draft": DraftAcceptance,
    "prefix": Prefix,
    "session": Session,
}


def make(names: Sequence[str]) -> list[Dimension]:
    """Dimensions by name, or by place: `package.module:Class`. Raises: ValueError: there is none such."""
    made = []
    for name in names:
        try:
            kind = pkgutil.resolve_name(name) if ":" in name else DIMENSIONS[name]
        except (KeyError, ImportError, AttributeError, ValueError):
            known = ", ".join(DIMENSIONS)
            raise ValueError(f"no dimension '{name}'; there is {known}, or give package.module:Class") from None
        made.append(kind())
    return made
