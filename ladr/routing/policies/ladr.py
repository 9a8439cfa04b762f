"""ladr: a request goes where it costs the fewest seconds among the workers with a free slot; with none free it waits here.

cost = step · (128 tokens · (n + 1) / slots + prompt tokens / 48) · noise + dimensions
step = pace · (1 + growth · n / slots), n requests there now, this router's newest included.

`pace` is what a token takes there alone: each measured one, divided by 1 + growth · (n − 1) / slots of its time, smoothed.
Prompts count by size, of five sizes. The longer one is, the more it is drawn to where a step is short: it is read in steps, and
its first token waits for that. A short one cares more for the share of slots taken, and so leaves room on the fast workers.
Noise keeps several routers from choosing alike; a worker's is as large as the others' share of the requests there.

Why so: the slot guard keeps requests from queueing at one worker while another is free; the token's pace shows a slow worker
within a few reports; a request that waits here can still go anywhere. With several routers, each knows of the others' requests
only by what workers tell. One that took a slot which this router thought free leaves its request waiting there, and the worker
says so at once: then it is taken back. And of several routers the one whose request ends knows first of the free slot. A
request that has waited long for want of such luck may queue at a worker, one of each router, and so gets its turn.

Slots may be told wrongly, or memory run out before slots do. A worker where requests wait has as many slots as run; one that
is full is tried with one more from time to time, and has more slots if that begins at once. Up to the slots that it tells a
worker gains one whenever its last one is taken at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

from ladr.routing.dimensions import ANSWER_TOKENS, READ_TOKENS, Dimension
from ladr.routing.policy import Ask, C, Candidate, Knob, Policy

START_PACE_S = 0.02  # before any worker told one
SMOOTHING = 0.1  # share of the new in each step of the pace
TRIAL_S = 1.0  # a full worker is tried so often
LOOK_S = 0.02  # while all are full they are looked over so often
PATIENCE_S = 0.5  # a request that waited so long may queue at a worker
QUEUE_SHARE = 0.25  # if it gets its turn there within this share of what it waited
SAME_S = 0.001
FORGET_PICKS = 1024
PROMPTS = (256, 768, 1536, 3072, 6144)  # tokens; what prompts of under 512, 1,024, 2,048, 4,096 and of more count as


def size(prompt_tokens: int) -> int:
    """Of a prompt: which of `PROMPTS` it counts as."""
    return min(max(prompt_tokens.bit_length() - 9, 0), len(PROMPTS) - 1)


@dataclass(slots=True)
class _Known:
    """What this router found out about a worker."""

    told_slots: int
    slots: int
    measured_s: float | None = None
    pace_s: float | None = None
    tried_s: float = -math.inf
    queued_s: float | None = None  # when a request of this router was sent there to queue, until it is through
    may_queue: float = 0.0  # how many might wait there then


class _Costs(dict[Candidate, float]):
    """Seconds by candidate, for one size of prompt; a missing one is computed."""

    def __init__(self, policy: Ladr) -> None:
        self._policy = policy

    def __missing__(self, candidate: Candidate) -> float:
        self._policy.update(candidate, 1.0)
        return self[candidate]


class Ladr(Policy):
    """Costs are kept up to date as workers change, so that a pick is one scan of a table, that of the prompt's size."""

    knobs = (Knob("growth", 0.25, 8.0, log=True), Knob("hold", 0.0, 4.0, whole=True))
    waits = True

    def __init__(self, growth: float, hold: int, noise: float, dimensions: Sequence[Dimension]) -> None:
        self._growth = growth
        self._hold = hold
        self._noise = noise
        self._dimensions = dimensions
        self._of_asks = [d for d in dimensions if type(d).concerns is not Dimension.concerns]
        self._costs = [(_Costs(self), tokens / READ_TOKENS) for tokens in PROMPTS]
        self._known: dict[Candidate, _Known] = {}
        self._typical_s = START_PACE_S
        self._looked_s = -math.inf
        self._picks = 0

    def parameters(self) -> dict[str, float]:
        return {"growth": self._growth, "hold": float(self._hold)}

    def tune(self, parameters: Mapping[str, float]) -> None:
        """From each worker's next change on."""
        self._growth = parameters["growth"]
        self._hold = round(parameters["hold"])

    def changed(self, candidate: Candidate, rng: Random) -> None:
        others = 1 - candidate.in_flight / candidate.depth if candidate.depth else 1.0
        self.update(candidate, 1 + self._noise * others * (rng.random() - 0.5))

    def update(self, candidate: Candidate, noise: float) -> None:
        """Compute a worker's costs anew."""
        known = self._measure(candidate)
        if candidate.depth >= known.slots + self._hold:
            for costs, _ in self._costs:
                costs[candidate] = math.inf
            return
        step_s = self._step_s(candidate, known) * noise
        any_s = step_s * ANSWER_TOKENS * (candidate.depth + 1) / known.slots
        for dimension in self._dimensions:
            any_s += dimension.cost_s(candidate)
        for costs, steps in self._costs:
            costs[candidate] = any_s + step_s * steps

    def _step_s(self, candidate: Candidate, known: _Known) -> float:
        """Of a token there now."""
        pace_s = known.pace_s or self._typical_s
        return pace_s * (1 + self._growth * min(candidate.depth / known.slots, 1.0))

    def _measure(self, candidate: Candidate) -> _Known:
        known = self._known.get(candidate)
        if known is None:
            known = self._known[candidate] = _Known(candidate.slots, candidate.slots)
        if candidate.slots != known.told_slots:
            known.told_slots = known.slots = candidate.slots
        measured_s = candidate.pace_s
        if measured_s and measured_s != known.measured_s:
            known.measured_s = measured_s
            busy = min(max(candidate.reported - 1, 0) / known.slots, 1.0)
            alone_s = measured_s / (1 + self._growth * busy)
            known.pace_s = alone_s if known.pace_s is None else known.pace_s + SMOOTHING * (alone_s - known.pace_s)
            self._typical_s += SMOOTHING / 10 * (alone_s - self._typical_s)
        return known

    def pick(self, candidates: Sequence[C], ask: Ask, rng: Random, now_s: float) -> C | None:
        self._picks += 1
        if self._picks % FORGET_PICKS == 0:
            self._forget(candidates)
        costs, _ = self._costs[size(ask.prompt_tokens)]
        best = min(candidates, key=costs.__getitem__)
        if costs[best] == math.inf:
            if now_s < self._looked_s + LOOK_S:
                return None
            self._looked_s = now_s
            return self._queue(candidates, now_s - ask.arrived_s, now_s) or self._trial(candidates, now_s)
        return self._nearer(candidates, best, costs, ask) if self._of_asks else best

    def _nearer(self, candidates: Sequence[C], best: C, costs: _Costs, ask: Ask) -> C:
        """The one that costs least where the request itself counts; only the few that it concerns are looked at."""
        concerned = {id(c): c for dimension in self._of_asks for c in dimension.concerns(ask)}
        if not concerned:
            return best
        best_s = costs[best] + self._ask_s(best, ask)
        for candidate in cast(Iterable[C], concerned.values()):
            cost_s = costs[candidate] + self._ask_s(candidate, ask)
            if cost_s < best_s and candidate in candidates:
                best, best_s = candidate, cost_s
        return best

    def _ask_s(self, candidate: Candidate, ask: Ask) -> float:
        return sum(dimension.ask_cost_s(candidate, ask) for dimension in self._of_asks)

    def _queue(self, candidates: Sequence[C], waited_s: float, now_s: float) -> C | None:
        """All are full, and others send there too: where it gets its turn soonest, if that is soon for one that waited so long.

        A slot that becomes free is known first to the router whose request had it. One request of each router in the worker's
        queue lets all routers have their turn.
        """
        if waited_s < PATIENCE_S:
            return None
        best, best_s = None, QUEUE_SHARE * waited_s
        for candidate in candidates:
            known = self._measure(candidate)
            if known.queued_s is None and candidate.depth > candidate.in_flight and candidate.finished_per_s > 0:
                wait_s = (candidate.depth + 1 - known.slots) / candidate.finished_per_s
                if wait_s < best_s:
                    best, best_s = candidate, wait_s
        if best is not None:
            known = self._known[best]
            known.queued_s = now_s
            known.may_queue = QUEUE_SHARE * waited_s * best.finished_per_s
        return best

    def _trial(self, candidates: Sequence[C], now_s: float) -> C | None:
        """All are full, as far as is known: the one that was tried longest ago, if it is time to try one."""
        chosen = min(candidates, key=lambda c: self._measure(c).tried_s)
        known = self._known[chosen]
        if now_s < known.tried_s + TRIAL_S or chosen.depth > known.slots + self._hold:
            return None
        known.tried_s = now_s
        return chosen

    def keeps(self, candidate: Candidate, waiting: int) -> bool:
        known = self._measure(candidate)
        if waiting:
            known.slots = max(candidate.reported - waiting, 1)
        elif candidate.reported > known.slots:
            known.slots = candidate.reported
            known.tried_s = self._looked_s = -math.inf
        elif candidate.reported == known.slots < known.told_slots:
            known.slots += 1
        return waiting <= max(self._hold, 0.0 if known.queued_s is None else known.may_queue)

    def first_token(self, candidate: Candidate, took_s: float, now_s: float) -> None:
        self._through(candidate, now_s - took_s)

    def ended(self, candidate: Candidate, took_s: float, ok: bool, now_s: float) -> None:
        self._through(candidate, now_s - took_s)

    def _through(self, candidate: Candidate, sent_s: float) -> None:
        """A request that was sent then does not wait any more, and so none that was sent before."""
        known = self._measure(candidate)
        if known.queued_s is not None and sent_s >= known.queued_s - SAME_S:
            known.queued_s = None

    def sent(self, candidate: Candidate, ask: Ask, now_s: float) -> None:
        for dimension in self._of_asks:
            dimension.sent(candidate, ask)

    def weights(self, candidates: Sequence[Candidate]) -> list[float]:
        """Free slots (at least a tenth of one) by the time of a token there, as it was measured last: whoever draws by weights
        alone sees a slow worker as soon as its reports do.
        """
        shares = []
        for candidate in candidates:
            known = self._measure(candidate)
            token_s = candidate.pace_s or self._step_s(candidate, known)
            shares.append(max(known.slots - candidate.depth, 0.1) / token_s)
        total = sum(shares)
        return [share / total for share in shares]

    def _forget(self, candidates: Sequence[Candidate]) -> None:
        """Keep what is known of these alone, when it is much more than these. What is missed is found out again."""
        if len(self._known) > 2 * len(candidates) + 64:
            kept = set(candidates)
            self._known = {candidate: known for candidate, known in self._known.items() if candidate in kept}
            for costs, _ in self._costs:
                for candidate in costs.keys() - kept:
                    del costs[candidate]
