"""A worker that runs requests in one batch, without stepping through it.

All running requests go at the same pace, so time is counted in steps: a request that begins at step v and needs n of them ends
at v + n whatever others do, and only the length of a step changes with the batch. Two events a request, none a token.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from benchmarks.routing_sim.scenario import BLOCK_TOKENS, Machine, Work
from ladr.v1 import fleet_pb2, generation_pb2

DRAFTED = 4  # tokens a step
Schedule = Callable[[float, Callable[[Any], None], Any], None]  # at_s, what, its argument


class Visit:
    """A request at a worker: one attempt. The subclass is told of its first token and its end, at the worker's own time."""

    __slots__ = ("began", "generating", "over", "staged", "taken_s", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.taken_s = 0.0
        self.staged = self.began = self.generating = self.over = False

    def first_token(self, now_s: float) -> None:
        raise NotImplementedError

    def finished(self, now_s: float) -> None:
        raise NotImplementedError


class Worker:
    """The true state; `told_*` is what leaves it. Times are seconds of the simulation."""

    def __init__(self, name: str, machine: Machine, clock: Callable[[], float], schedule: Schedule) -> None:
        self.name = name
        self.machine = machine
        self.slower = 1.0
        self.fails = False
        self.running = 0
        self.waiting: deque[Visit] = deque()
        self._clock = clock
        self._schedule = schedule
        self._steps = 0.0  # since the beginning
        self._at_s = 0.0
        self._ends: list[tuple[float, int, bool, Visit]] = []  # (step, tie-break, whether it is the first token, visit)
        self._generating = 0
        self._version = 0
        self._count = 0
        self._kv_used = 0
        self._queued_tokens = 0  # of the prompts that wait
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._stage_free_s = 0.0
        self._in_stage = 0
        self._revision = 0
        self._sequence = 0
        self.tokens = 0.0
        self._token_s = 0.0
        self._drafting_steps = 0.0
        self._ttft_count, self._ttft_s = 0, 0.0
        self._stage_count, self._stage_s = 0, 0.0
        self._finished = self._failed = self._prompt_tokens = self._accepted = 0
        self._history: deque[tuple[float, float]] = deque(maxlen=64)

    @property
    def busy(self) -> int:
        """Requests there."""
        return self.running + len(self.waiting) + self._in_stage

    def step_s(self, batch: int) -> float:
        """A step's length with so many running."""
        machine = self.machine
        others = (batch - 1) / max(machine.slots - 1, 1)
        return machine.step_s * self.slower * (1 + machine.growth * others)

    def token_s(self, batch: int) -> float:
        """What a token of an answer takes with so many running."""
        return self.step_s(batch) / self.machine.tokens_per_step

    def fits(self, work: Work) -> bool:
        """Whether it could begin at once."""
        return self.busy < self.machine.slots and self._has_memory(work)

    def _has_memory(self, work: Work) -> bool:
        limit = self.machine.kv_tokens
        return not limit or not self.running or self._kv_used + work.prompt_tokens + work.answer_tokens <= limit

    def slow_down(self, slower: float, now_s: float) -> None:
        self._advance(now_s)
        self.slower = slower
        self._plan(now_s)

    def take(self, visit: Visit, now_s: float) -> None:
        """A request came."""
        visit.taken_s = now_s
        self._revision += 1
        self._accepted += 1
        if self.machine.stage_s:
            begins_s = max(self._stage_free_s, now_s)
            self._stage_free_s = begins_s + self.machine.stage_s
            self._stage_count += 1
            self._stage_s += self._stage_free_s - now_s
            self._in_stage += 1
            visit.staged = True
            self._schedule(self._stage_free_s, self._staged, visit)
            return
        self._enter(visit, now_s)

    def _staged(self, visit: Visit) -> None:
        visit.staged = False
        self._in_stage -= 1
        if not visit.over:
            self._enter(visit, self._clock())

    def _enter(self, visit: Visit, now_s: float) -> None:
        self.waiting.append(visit)
        self._queued_tokens += visit.work.prompt_tokens
        self._admit(now_s)

    def cancel(self, visit: Visit) -> None:
        """Its client gave up; nothing happens if it is over here."""
        if visit.over:
            return
        visit.over = True
        self._revision += 1
        if visit.staged:
            return
        if not visit.began:
            self.waiting.remove(visit)
            self._queued_tokens -= visit.work.prompt_tokens
            return
        now_s = self._clock()
        self._leave(visit, now_s)
        self._admit(now_s)

    def _admit(self, now_s: float) -> None:
        """Begin what fits, in turn."""
        machine = self.machine
        self._advance(now_s)
        while self.waiting and self.running < machine.slots:
            visit = self.waiting[0]
            if not self._has_memory(visit.work):
                break
            self.waiting.popleft()
            self._queued_tokens -= visit.work.prompt_tokens
            self._kv_used += visit.work.prompt_tokens + visit.work.answer_tokens
            new_tokens = visit.work.prompt_tokens - self._held(visit.work.prefix)
            self._prompt_tokens += new_tokens
            self.running += 1
            visit.began = True
            reading = max(new_tokens, 1) / machine.read_tokens
            first = self._steps + reading + 1
            last = first + max(visit.work.answer_tokens - 1, 0) / machine.tokens_per_step
            self._count += 2
            heappush(self._ends, (first, self._count, True, visit))
            heappush(self._ends, (last, self._count + 1, False, visit))
        self._plan(now_s)

    def _held(self, prefix: tuple[int, ...]) -> int:
        """Prompt tokens that the cache saves, and keep this prompt."""
        limit = self.machine.cached_blocks
        if not limit or not prefix:
            return 0
        held = 0
        for block in prefix:
            if block not in self._cache:
                break
            held += 1
        for block in reversed(prefix):  # the beginning is the newest, so that the end is forgotten first
            self._cache[block] = None
            self._cache.move_to_end(block)
        while len(self._cache) > limit:
            self._cache.popitem(last=False)
        return held * BLOCK_TOKENS

    def _leave(self, visit: Visit, now_s: float) -> None:
        self._advance(now_s)
        self.running -= 1
        self._kv_used -= visit.work.prompt_tokens + visit.work.answer_tokens
        if visit.generating:
            self._generating -= 1

    def _advance(self, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        self._at_s = now_s
        if self.running and elapsed_s > 0:
            steps = elapsed_s / self.step_s(self.running)
            self._steps += steps
            self.tokens += self._generating * steps * self.machine.tokens_per_step
            self._token_s += self._generating * elapsed_s
            self._drafting_steps += self._generating * steps

    def _plan(self, now_s: float) -> None:
        """Say when the next thing happens here."""
        while self._ends and self._ends[0][3].over:
            heappop(self._ends)
        self._version += 1
        if self._ends:
            after_s = max(self._ends[0][0] - self._steps, 0.0) * self.step_s(self.running)
            self._schedule(now_s + after_s, self._happens, self._version)

    def _happens(self, version: int) -> None:
        if version != self._version:
            return
        _, _, first, visit = heappop(self._ends)
        now_s = self._clock()
        self._advance(now_s)
        if first:
            visit.generating = True
            self._generating += 1
            self._ttft_count += 1
            self._ttft_s += now_s - visit.taken_s
            visit.first_token(now_s)
            self._plan(now_s)
            return
        visit.over = True
        self._revision += 1
        self._finished += 1
        self._leave(visit, now_s)
        self._admit(now_s)
        visit.finished(now_s)

    def fail(self) -> None:
        """It failed a request at once."""
        self._failed += 1

    def load(self) -> generation_pb2.Load:
        """What a message says of it."""
        running = self._told_running()
        return generation_pb2.Load(running=running, queued=self.busy - running, revision=self._revision)

    def _told_running(self) -> int:
        """Requests in a further stage count as running while there are slots for them."""
        return min(self.running + self._in_stage, self.machine.slots)

    def report(self, now_s: float) -> fleet_pb2.WorkerReport:
        """What it says of itself now."""
        self._advance(now_s)
        self._plan(now_s)
        self._sequence += 1
        machine = self.machine
        self._history.append((now_s, self.tokens))
        while now_s - self._history[0][0] > 1.0:
            self._history.popleft()
        then_s, then = self._history[0]
        report = fleet_pb2.WorkerReport(
            worker_id=self.name,
            sequence=self._sequence,
            state=fleet_pb2.WORKER_STATE_READY,
            slots=machine.told_slots or machine.slots,
            running=self._told_running(),
            queued=self.busy - self._told_running(),
            tokens_per_second=(self.tokens - then) / (now_s - then_s) if now_s > then_s else 0.0,
            finished_total=self._finished,
            failed_total=self._failed,
            tokens_total=int(self.tokens),
            prompt_tokens_total=self._prompt_tokens,
            queued_prompt_tokens=self._queued_tokens,
            accepted_total=self._accepted,
            load_revision=self._revision,
        )
        _set(report.time_to_first_token, self._ttft_count, self._ttft_s)
        _set(report.time_per_output_token, int(self.tokens), self._token_s)
        if machine.kv_tokens:
            report.kv_used_ratio = min(self._kv_used / machine.kv_tokens, 1.0)
        if machine.acceptance is not None:
            report.drafting.drafted_tokens = int(self._drafting_steps * DRAFTED)
            report.drafting.accepted_tokens = int(self._drafting_steps * DRAFTED * machine.acceptance)
        if machine.stage_s:
            stage = report.stages.add(name="stage", queued=self._in_stage)
            _set(stage.latency, self._stage_count, self._stage_s)
        return report


def _set(totals: fleet_pb2.LatencyTotals, count: int, sum_s: float) -> None:
    totals.count = count
    totals.sum.seconds = int(sum_s)
    totals.sum.nanos = int((sum_s - int(sum_s)) * 1e9)
