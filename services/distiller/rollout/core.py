"""When a roll-out goes on, and when it goes back. Pure: what was counted and the time in, a decision out.

A student fails too often when it failed 3 times at least, and would have failed so often with a probability of 1 % at most if
its share of failures were that of the others and the margin (one-sided binomial test; the others' share is taken as it was
counted): one failure of two requests proves nothing. A stage is passed only when the share that was counted is within the
margin; between the two, more requests are waited for. The mean time to first token is compared as soon as the student has as
many samples as a stage must have answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

MOST_CHANCE = 0.01
LEAST_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of requests. `first_tokens_s`: the sum of the times to their first tokens, `first_tokens` of them."""

    succeeded: int = 0
    failed: int = 0
    first_tokens: int = 0
    first_tokens_s: float = 0.0

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed

    @property
    def failure_ratio(self) -> float:
        """0 before the first request."""
        return self.failed / self.ended if self.ended else 0.0

    @property
    def first_token_s(self) -> float | None:
        """The mean. None before the first."""
        return self.first_tokens_s / self.first_tokens if self.first_tokens else None

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.succeeded + other.succeeded,
            self.failed + other.failed,
            self.first_tokens + other.first_tokens,
            self.first_tokens_s + other.first_tokens_s,
        )


NOTHING = Counts()


def gained(before: Counts | None, now: Counts) -> Counts:
    """What came between two readings of counters that only grow; nothing if they went back: the router began anew."""
    if before is None:
        return NOTHING
    since = Counts(
        now.succeeded - before.succeeded,
        now.failed - before.failed,
        now.first_tokens - before.first_tokens,
        now.first_tokens_s - before.first_tokens_s,
    )
    if min(since.succeeded, since.failed, since.first_tokens, since.first_tokens_s) < 0:
        return NOTHING
    return since


@dataclass(frozen=True, slots=True)
class Rules:
    """What was asked for; see PublishStudentRequest."""

    stages: tuple[float, ...]
    stage_s: float
    stage_requests: int
    timeout_s: float
    error_margin: float
    latency_ratio: float


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a roll-out is.

    Attributes:
        stage: from 0. began_s: when it began.
        student, others: what they did in it.
        earlier: what the others did in the stages before, newest first until there was enough.
    """

    stage: int
    began_s: float
    student: Counts = NOTHING
    others: Counts = NOTHING
    earlier: Counts = NOTHING


@dataclass(frozen=True, slots=True)
class Stay:
    """As it is."""

    reason: str


@dataclass(frozen=True, slots=True)
class Advance:
    """On to the next stage."""

    stage: int
    reason: str


@dataclass(frozen=True, slots=True)
class Succeed:
    """All stages are done."""

    reason: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """It did worse, or took too long."""

    reason: str


Decision = Stay | Advance | Succeed | RollBack


def yardstick(rules: Rules, others: Counts, earlier: Counts) -> Counts:
    """What the student is compared with: the others in this stage, and in those before as long as they had too few requests."""
    return others if others.ended >= max(rules.stage_requests, 1) else others + earlier


def entered(rules: Rules, standing: Standing, stage: int, now_s: float) -> Standing:
    """At the beginning of the next stage."""
    earlier = yardstick(rules, standing.others, standing.earlier)
    return Standing(stage, now_s, earlier=earlier)


def counted(standing: Standing, student: Counts, others: Counts) -> Standing:
    """With what came since."""
    return replace(standing, student=standing.student + student, others=standing.others + others)


def decide(rules: Rules, standing: Standing, now_s: float) -> Decision:
    """What is to be done now."""
    student, base = standing.student, yardstick(rules, standing.others, standing.earlier)
    what = f"stage {standing.stage + 1} of {len(rules.stages)} ({_percent(rules.stages[standing.stage])})"
    most = base.failure_ratio + rules.error_margin
    failures = (
        f"{_percent(student.failure_ratio)} of its {student.ended} requests failed, "
        f"{_percent(base.failure_ratio)} of theirs"
    )
    if (
        student.failed >= LEAST_FAILURES
        and student.failure_ratio > most
        and chance(student.failed, student.ended, most) <= MOST_CHANCE
    ):
        return RollBack(f"{what}: {failures}")
    lasted_s = max(0.0, now_s - standing.began_s)
    waits = _waits(rules, student, lasted_s)
    slower = _slower(rules, student, base)
    if slower and (not waits or student.first_tokens >= max(rules.stage_requests, 1)):
        return RollBack(f"{what}: {slower}")
    if student.failure_ratio > most:
        waits = waits or f"{failures}, too few requests to tell"
    if not waits:
        if standing.stage + 1 == len(rules.stages):
            return Succeed(f"{what} is passed, the last one")
        share = rules.stages[standing.stage + 1]
        return Advance(standing.stage + 1, f"{what} is passed; now {_percent(share)}")
    if lasted_s >= rules.timeout_s:
        return RollBack(f"{what} took longer than {rules.timeout_s:g} s: {waits}")
    return Stay(f"{what}: {waits}")


def _waits(rules: Rules, student: Counts, lasted_s: float) -> str:
    """What a stage lacks before it can be passed."""
    if student.succeeded < rules.stage_requests:
        return f"{student.succeeded} of {rules.stage_requests} requests answered"
    return f"{math.ceil(rules.stage_s - lasted_s)} s to go" if lasted_s < rules.stage_s else ""


def _slower(rules: Rules, student: Counts, base: Counts) -> str:
    """How the student is too slow; nothing if it is not, or nobody can tell."""
    its_s, their_s = student.first_token_s, base.first_token_s
    if its_s is None or their_s is None or its_s <= rules.latency_ratio * their_s:
        return ""
    return f"its first token takes {1000 * its_s:.0f} ms, theirs {1000 * their_s:.0f} ms"


def chance(failed: int, ended: int, ratio: float) -> float:
    """The probability that so many or more of `ended` requests fail if each of them fails with probability `ratio`."""
    if failed <= 0 or ratio >= 1:
        return 1.0
    if ratio <= 0:
        return 0.0
    term = math.exp(
        math.lgamma(ended + 1)
        - math.lgamma(failed + 1)
        - math.lgamma(ended - failed + 1)
        + failed * math.log(ratio)
        + (ended - failed) * math.log1p(-ratio)
    )
    total, odds = 0.0, ratio / (1 - ratio)
    for number in range(failed, ended + 1):
        total += term
        ahead = (ended - number) / (number + 1) * odds
        if ahead < 1 and term < 1e-17 * total:
            break
        term *= ahead
    return min(1.0, total)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
