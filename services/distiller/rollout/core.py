"""When a roll-out goes on, and when it goes back. Pure: what was counted and the time in, a decision out.

The student goes back when a lower bound of what it does lies above an upper bound of what the others do, and what they are
allowed to differ by: of the share of failures, of the time to first token, and of the time per output token. The bounds hold at
every look at once (see bounds): however often it is looked at, a student that is not worse than allowed goes back by chance in
1 % of stages at most, for each of the three. A stage is passed only when what was counted is within what is allowed; between
the two, more requests are waited for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from services.distiller.rollout.bounds import mean_bounds, share_bounds
from services.distiller.rollout.counts import NOTHING, Counts, Times

# Of the 1 %, half is the student's. The others' bounds are of one of two counts, with what they did before or without.
STUDENTS_CHANCE = 0.005
OTHERS_CHANCE = 0.0025
LEAST_FAILURES = 3
LEAST_TIMES = 20  # under which a variance that was counted says little


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
        earlier: what the others did in the stages before.
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
    """What the student is compared with: the others in this stage, and in all before it as long as they had too few in it."""
    return others if others.ended >= _least(rules) else others + earlier


def entered(standing: Standing, stage: int, now_s: float) -> Standing:
    """At the beginning of the next stage."""
    return Standing(stage, now_s, earlier=standing.earlier + standing.others)


def counted(standing: Standing, student: Counts, others: Counts) -> Standing:
    """With what came since."""
    return replace(standing, student=standing.student + student, others=standing.others + others)


def decide(rules: Rules, standing: Standing, now_s: float) -> Decision:
    """What is to be done now."""
    student, base = standing.student, yardstick(rules, standing.others, standing.earlier)
    share = rules.stages[standing.stage]
    what = f"stage {standing.stage + 1} of {len(rules.stages)} ({_percent(share)})"
    comes = share < 1 or base.ended >= _least(rules)  # what it is compared with
    if not comes:
        base = Counts(base.succeeded, base.failed)
    if worse := _fails_more(rules, student, base, comes) or _slower(rules, student, base):
        return RollBack(f"{what}: {worse}")
    lasted_s = max(0.0, now_s - standing.began_s)
    waits = _waits(rules, student, base if comes else None, lasted_s) or _doubtful(rules, student, base)
    if not waits:
        passed = f"{what} is passed with {student.succeeded} answered, {student.failed} failed"
        if standing.stage + 1 == len(rules.stages):
            return Succeed(f"{passed}, the last one")
        following = rules.stages[standing.stage + 1]
        return Advance(standing.stage + 1, f"{passed}; now {_percent(following)}")
    if lasted_s >= rules.timeout_s:
        return RollBack(f"{what} took longer than {rules.timeout_s:g} s: {waits}")
    return Stay(f"{what}: {waits}")


def _fails_more(rules: Rules, student: Counts, base: Counts, comes: bool) -> str:
    """How the student surely fails too often; nothing if it does not, or nobody can tell.

    comes: the others have had requests enough, or will have: else their share is taken as it was counted.
    """
    if student.failed < LEAST_FAILURES or student.failure_ratio <= base.failure_ratio + rules.error_margin:
        return ""
    its_least, _ = share_bounds(student.failed, student.ended, STUDENTS_CHANCE)
    their_most = share_bounds(base.failed, base.ended, OTHERS_CHANCE)[1] if comes else base.failure_ratio
    return _failures(student, base) if its_least > their_most + rules.error_margin else ""


def _slower(rules: Rules, student: Counts, base: Counts) -> str:
    """How the student is surely too slow; nothing if it is not, or nobody can tell."""
    for what, its, theirs in _paces(student, base):
        if min(its.count, theirs.count) < max(_least(rules), LEAST_TIMES):
            continue
        its_least, _ = mean_bounds(its.count, its.total, its.squares, STUDENTS_CHANCE)
        _, their_most = mean_bounds(theirs.count, theirs.total, theirs.squares, OTHERS_CHANCE)
        if its_least > their_most + math.log(rules.latency_ratio):
            return _slowness(what, its, theirs)
    return ""


def _waits(rules: Rules, student: Counts, base: Counts | None, lasted_s: float) -> str:
    """What a stage lacks before it can be passed. base: None: no others' requests are waited for."""
    if student.succeeded < rules.stage_requests:
        return f"{student.succeeded} of {rules.stage_requests} requests answered"
    if base is not None and base.ended < _least(rules):
        return f"the others have had {base.ended} of {_least(rules)} requests to compare with"
    return f"{math.ceil(rules.stage_s - lasted_s)} s to go" if lasted_s < rules.stage_s else ""


def _doubtful(rules: Rules, student: Counts, base: Counts) -> str:
    """What was counted and is not within what is allowed, though it may be chance."""
    if student.failure_ratio > base.failure_ratio + rules.error_margin:
        return f"{_failures(student, base)}, too few requests to tell"
    for what, its, theirs in _paces(student, base):
        if (
            its.count
            and theirs.count
            and its.total / its.count > theirs.total / theirs.count + math.log(rules.latency_ratio)
        ):
            return f"{_slowness(what, its, theirs)}, too few requests to tell"
    return ""


def _paces(student: Counts, base: Counts) -> tuple[tuple[str, Times, Times], ...]:
    return (
        ("its first token takes", student.first_tokens, base.first_tokens),
        ("each token after it takes", student.output_tokens, base.output_tokens),
    )


def _failures(student: Counts, base: Counts) -> str:
    return (
        f"{_percent(student.failure_ratio)} of its {student.ended} requests failed, "
        f"{_percent(base.failure_ratio)} of theirs"
    )


def _slowness(what: str, its: Times, theirs: Times) -> str:
    return f"{what} {_ms(its)}, theirs {_ms(theirs)}"


def _least(rules: Rules) -> int:
    """Requests without which there is nothing to compare with."""
    return max(rules.stage_requests, 1)


def _ms(times: Times) -> str:
    return f"{1000 * (times.mean_s or 0):.3g} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
