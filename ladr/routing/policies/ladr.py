"""ladr: the least cost in seconds among the workers with room; without room the request waits."""

from __future__ import annotations

import math, os
from collections.abc import Sequence
from random import Random

from ladr.routing.policy import Ask, C, Candidate, Policy
E = os.environ.get
K=float(E('K','1')); HOLD=int(E('HOLD','0')); NOISE=float(E('NOISE','0.2')); PHI=int(E('PHI','1')); NORM=int(E('NORM','0'))
KEEP=float(E('KEEP','0.1'));STARVE=float(E('STARVE','0'));PMIN=float(E('PMIN','.02'));PROBE=int(E('PROBE','0'));GAP=float(E('GAP','0.01'));W=float(E('W','0.02')); JIT=float(E('JIT','0'))

class Ladr(Policy):
    def __init__(self, growth: float, hold: int, noise: float) -> None:
        self._k = K
        self._hold = HOLD
        self._noise = NOISE
        self._costs: dict[Candidate, float] = {}
        self._state = {}
        self._mine = self._all = 0
        self._phi = 1.0
        self._base = {}

    def changed(self, candidate: Candidate, rng: Random) -> None:
        slots, depth = candidate.slots, candidate.depth
        a, b = self._state.get(candidate, (0, 0))
        self._mine += candidate.in_flight - a
        self._all += depth - b
        self._state[candidate] = candidate.in_flight, depth
        if self._all:
            self._phi += W * (max(self._mine / self._all,PMIN) - self._phi)
        pace_s = candidate.pace_s or 0.01
        if NORM:
            p, base = self._base.get(candidate, (None, pace_s))
            if p != pace_s:
                base2 = pace_s / (1 + self._k * min(max(candidate.reported-1,0)/slots,1))
                base = base2 if p is None else base + NORM/10*(base2-base)
                self._base[candidate] = pace_s, base
            pace_s = base
        sent = candidate.sent
        if PHI and sent > 0:
            depth += sent * (1 / self._phi - 1)
        if self._noise:
            pace_s *= 1 + self._noise * (rng.random() - 0.5)
        if depth + 1 <= slots:
            self._costs[candidate] = pace_s * (1 + self._k * depth / slots)
        elif depth + 1 <= slots + self._hold:
            self._costs[candidate] = 1e6 + (depth + 1 - slots) * pace_s / slots
        else:
            self._costs[candidate] = math.inf

    _since = None
    _full = False
    def pick(self, candidates, ask, rng, now_s):
        best = min(candidates, key=self._costs.__getitem__)
        self._waits = self._costs[best] == math.inf
        self._now = now_s
        self._full = False
        if not self._waits:
            self._since = None
            return best
        if self._since is None:
            self._since = now_s
        if STARVE and now_s - self._since > STARVE and self._phi < 0.9:
            room = [c for c in candidates if c.depth + 1 <= c.slots + 1]
            if room:
                best = max(room, key=lambda c: c.finished_per_s)
                self._since = now_s
                self._full = best
                return best
        return None

    def keeps(self, candidate, waiting):
        if candidate is self._full:
            return waiting <= 2
        return waiting <= KEEP * candidate.finished_per_s

    _last = 0.0
    def probes(self, candidates, rng):
        if not PROBE or not self._waits or self._phi > 0.9 or self._now - self._last < GAP:
            return ()
        self._last = self._now
        return rng.sample(candidates, min(PROBE, len(candidates)))
