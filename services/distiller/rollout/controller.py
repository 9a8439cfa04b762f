"""Drives roll-outs: each by a task that does one step after the other and keeps what it did before the next.

What a step does follows from the record alone, and each can be done twice, so that a service that was killed goes on where it
stood. Whoever else changes the split of the name has it: the roll-out ends there and touches it no more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import structlog

from ladr.errors import AlreadyExists, DeadlineExceeded, LadrError, NotFound, Unreachable, WrongState
from ladr.v1 import fleet_pb2
from services.distiller.rollout import core
from services.distiller.rollout.core import Advance, RollBack, Succeed
from services.distiller.rollout.counts import NOTHING, Counts, gained
from services.distiller.rollout.mesh import Mesh, Sharing, ready, same
from services.distiller.rollout.record import Record
from services.distiller.rollout.store import RolloutStore

log = structlog.get_logger()

_POLL_S = (0.05, 1.0)  # between two looks at the counters: a tenth of a stage, within these
_BACKOFF_S = (0.1, 5.0)  # of what failed, doubled each time, with jitter
_SAVE_MS = 5_000  # counters that did not lead to anything go to the disk so often
_SETTLE_S = 0.5  # from the split's end to the student's: for requests that are on their way to it
_GONE_MS = 60_000  # after which a student that the router knows on no worker is not waited for
_SEEN_S = 0.1  # between two looks for a model that was loaded
_LOADS_S = 1.0  # between two looks for one that somebody else waits for
_AT_ONCE = 32  # workers that load it
_CRASHED = "the service failed on this; its log has the reason"


class Controller:
    """Args: changed: called after each change of a record."""

    def __init__(self, store: RolloutStore, mesh: Mesh | None, changed: Callable[[], None]) -> None:
        self._store = store
        self._mesh = mesh
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancels: dict[str, asyncio.Event] = {}
        self._ended = False

    async def run(self) -> None:
        """Go on with what is live, until cancelled."""
        try:
            for record in self._store.live:
                self.begin(record.id)
                if self._mesh is None:
                    self.note(replace(record, reason="the service knows no router now: set distiller.router"))
            await asyncio.Event().wait()
        finally:
            self._ended = True  # what is begun now is driven when the service is back
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def begin(self, rollout_id: str) -> None:
        """Drive a roll-out, if none does yet."""
        if rollout_id not in self._tasks and self._mesh and not self._ended:
            self._cancels[rollout_id] = asyncio.Event()
            task = self._tasks[rollout_id] = asyncio.create_task(_Drive(self, self._mesh, rollout_id).run())
            task.add_done_callback(lambda _: self._forget(rollout_id))

    def cancel(self, rollout_id: str) -> None:
        """Take it back as soon as may be."""
        self.begin(rollout_id)
        if event := self._cancels.get(rollout_id):
            event.set()

    def _forget(self, rollout_id: str) -> None:
        self._tasks.pop(rollout_id, None)
        self._cancels.pop(rollout_id, None)

    # For the drives.

    def cancelled(self, rollout_id: str) -> asyncio.Event:
        return self._cancels[rollout_id]

    def record(self, rollout_id: str) -> Record:
        return self._store.records[rollout_id]

    def now_ms(self) -> int:
        return self._store.now_ms()

    def note(self, record: Record) -> None:
        self._store.note(record)
        self._changed()

    async def save(self, record: Record) -> None:
        await self._store.save(record)
        self._changed()

    def had(self, worker: str, record: Record) -> bool:
        """Whether another roll-out put this very student there, under this very name."""
        return any(
            worker in one.loaded and not one.restored and (one.model, one.source) == (record.model, record.source)
            for one in self._store.records.values()
            if one.id != record.id
        )

    def ours(self, worker: str, record: Record) -> bool:
        """Whether this roll-out or another put it there."""
        return self.had(worker, record) or worker in record.loaded


class _Drive:
    """One roll-out to its end."""

    def __init__(self, all_of_them: Controller, mesh: Mesh, rollout_id: str) -> None:
        self._all = all_of_them
        self._mesh = mesh
        self._id = rollout_id
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._saved_ms = 0
        self._heard_ms = all_of_them.now_ms()  # when a step last worked

    @property
    def _record(self) -> Record:
        return self._all.record(self._id)

    async def run(self) -> None:
        cancelled = self._all.cancelled(self._id)
        backoff_s, longest_s = _BACKOFF_S
        while self._record.live:
            try:
                if cancelled.is_set() and not self._record.ending:
                    await self._end("cancelled", "it was cancelled")
                pause_s = await self._interruptible(cancelled)
                backoff_s, self._heard_ms = _BACKOFF_S[0], self._all.now_ms()
            except LadrError as error:
                await self._failed(error)
                pause_s = backoff_s * random.uniform(0.5, 1)  # noqa: S311  # jitter
                backoff_s = min(2 * backoff_s, longest_s)
            except Exception:
                log.exception("rollout_broke", rollout=self._id)
                self._say(_CRASHED)
                pause_s = longest_s
            if pause_s and self._record.live:
                await self._wait(cancelled, pause_s)

    async def _interruptible(self, cancelled: asyncio.Event) -> float:
        """The next step, unless it is cancelled before it is done; taking back is never cut short."""
        if self._record.ending:
            return await self._undo(self._record)
        step = asyncio.create_task(self._step(self._record))
        told = asyncio.create_task(cancelled.wait())
        try:
            await asyncio.wait({step, told}, return_when=asyncio.FIRST_COMPLETED)
            return await step if step.done() else 0.0
        finally:
            for task in (step, told):
                task.cancel()
            await asyncio.gather(step, told, return_exceptions=True)

    async def _wait(self, cancelled: asyncio.Event, pause_s: float) -> None:
        if self._record.ending or cancelled.is_set():
            await asyncio.sleep(pause_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await cancelled.wait()

    async def _step(self, record: Record) -> float:
        """Do what comes next; gives the seconds until the step after it."""
        if record.state == "loading":
            await self._load(record)
            return 0.0
        if not record.applied:
            await self._apply(record)
            return _poll_s(record)
        return await self._look(record)

    async def _load(self, record: Record) -> None:
        """Have the student on all workers, and the router know of it."""
        left_s = record.rules.timeout_s - (self._all.now_ms() - record.created_ms) / 1000
        if left_s <= 0:
            return await self._end("rolled_back", "the workers took too long to load it")
        there = await self._mesh.workers()
        if gone := [worker for worker in record.request.workers if worker not in there]:
            return await self._end("rolled_back", f"the router knows no worker {gone[0]!r} any more")
        wanted = [worker for worker in record.request.workers if not ready(there[worker], record.model)]
        others = [one for one in record.request.workers if one not in wanted and not self._all.ours(one, record)]
        new = [worker for worker in wanted if worker not in record.loaded]
        if new:
            record = replace(record, loaded=(*record.loaded, *new))
            await self._save(record)
        loads = [self._load_on(there[worker], record, left_s) for worker in wanted]
        failures = dict(zip(wanted, await asyncio.gather(*loads), strict=True))
        # A step that was cut short may have left a load that goes on; where none was begun, the model is another's.
        others += [one for one in new if isinstance(failures[one], AlreadyExists) and not self._all.had(one, record)]
        if others:
            record = replace(record, loaded=tuple(worker for worker in record.loaded if worker not in others))
            self._all.note(record)
            reason = f"{others[0]} has a model named {record.model!r} that is not known to be this: give another name"
            return await self._end("rolled_back", reason)
        for worker, error in failures.items():
            if error and not isinstance(error, AlreadyExists):
                return await self._end("rolled_back", f"{worker} could not load it: {_why(error)}")
        if wanted:
            await asyncio.sleep(_LOADS_S if any(failures.values()) else _SEEN_S)  # until the router has heard of it
            return None
        reason = f"the workers have loaded it; it begins with {100 * record.rules.stages[0]:.3g} %"
        return await self._save(replace(record, state="running", reason=reason), moved=True)

    async def _load_on(self, report: fleet_pb2.WorkerReport, record: Record, left_s: float) -> LadrError | None:
        """Load it on one worker; gives why that failed."""
        try:
            async with self._few:
                await self._mesh.load(report.address, record.model, record.source, left_s)
        except LadrError as error:
            return error
        return None

    async def _apply(self, record: Record) -> None:
        """Tell the router of the stage."""
        if not await self._is_ours(record):
            return await self._taken()
        shares = record.shares(record.stage)
        await self._mesh.share(record.mark, record.marked)
        sharing = await self._mesh.share(record.split, shares)
        now_ms = self._all.now_ms()
        first = not record.stage_ms
        applied = replace(
            record,
            applied=True,
            share=shares[record.model],
            stage_ms=record.stage_ms or now_ms,
            seen=sharing.counts,
        )
        await self._save(applied, moved=first)
        return None

    async def _look(self, record: Record) -> float:
        """Count, and decide."""
        sharing = await self._mesh.sharing(record.split)
        if sharing is None or not same(sharing.shares, record.shares(record.stage)):
            if await self._mesh.sharing(record.mark):
                await self._taken()
            else:
                log.warning("rollout_split_lost", rollout=record.id, name=record.split)
                reason = "the router began anew and had forgotten the shares; it is told again"
                await self._save(replace(record, applied=False, reason=reason))
            return 0.0
        rules, now_ms = record.rules, self._all.now_ms()
        standing = core.counted(record.standing, *_gains(record, sharing))
        counted = replace(record, seen=sharing.counts, student=standing.student, those=standing.others)
        match core.decide(rules, standing, now_ms / 1000):
            case core.Stay(reason):
                await self._keep(replace(counted, reason=reason))
                return _poll_s(record)
            case Advance(stage, reason):
                earlier = core.entered(standing, stage, now_ms / 1000).earlier
                following = replace(counted, stage=stage, stage_ms=0, applied=False, reason=reason, earlier=earlier)
                await self._save(replace(following, student=NOTHING, those=NOTHING), moved=True)
            case Succeed(reason):
                await self._mesh.share(record.mark, None)
                reason = f"{reason}; what shall outlast the router belongs into router.canaries"
                await self._save(replace(counted, state="succeeded", reason=reason), moved=True)
            case RollBack(reason):
                self._all.note(counted)
                await self._end("rolled_back", reason)
        return 0.0

    async def _undo(self, record: Record) -> float:
        """Give the requests back; then take the student out of the workers."""
        overdue = (self._all.now_ms() - record.ending_ms) / 1000 > record.rules.timeout_s
        try:
            if not record.restored:
                await self._restore(record)
                return _SETTLE_S
            reason = await self._unload(record)
            await asyncio.sleep(_SETTLE_S)  # the router has yet to hear; till then the mark says where it stood
            await self._mesh.share(record.mark, None)
        except LadrError as error:
            if not overdue:
                raise
            what = "the workers" if record.restored else f"the shares of {record.split!r}"
            reason = f"{record.reason}; look after {what} yourself: {_why(error)}"
        await self._save(replace(record, state=record.ending or "cancelled", reason=reason), moved=True)
        return 0.0

    async def _restore(self, record: Record) -> None:
        """Share the name as it was before."""
        if not await self._is_ours(record):
            return await self._taken()
        sharing = await self._mesh.sharing(record.split)
        await self._mesh.share(record.mark, record.marked)  # one that had succeeded has none
        if not same(sharing.shares if sharing else None, record.before):
            await self._mesh.share(record.split, record.before)
        await self._save(replace(record, restored=True, share=0.0), moved=True)
        return None

    async def _unload(self, record: Record) -> str:
        """Take the student out; gives the reason, and where that failed."""
        there = await self._mesh.workers()
        unloads = [self._unload_from(there[worker], record) for worker in record.loaded if worker in there]
        return record.reason + "".join(await asyncio.gather(*unloads))

    async def _unload_from(self, report: fleet_pb2.WorkerReport, record: Record) -> str:
        """Take it out of one worker; gives why that failed. Raises: WrongState: that must wait."""
        try:
            async with self._few:
                await self._mesh.unload(report.address, record.model)
        except WrongState:
            raise
        except LadrError as error:
            log.warning("rollout_not_unloaded", rollout=record.id, worker=report.worker_id, reason=error.message)
            return f"; {report.worker_id} still has it ({_why(error)})"
        return ""

    async def _is_ours(self, record: Record) -> bool:
        """Whether the name is shared as this roll-out left it, now or one step ago; or the router forgot all of it."""
        sharing = await self._mesh.sharing(record.split)
        now = sharing.shares if sharing else None
        left = [record.shares(record.stage), record.before]
        if record.stage:
            left.append(record.shares(record.stage - 1))
        return any(same(now, one) for one in left) or not await self._mesh.sharing(record.mark)

    async def _taken(self) -> None:
        """Somebody else has changed the split: leave it, and the student where it is if it is in there."""
        record = self._record
        sharing = await self._mesh.sharing(record.split)
        reason = f"the shares of {record.split!r} were changed by somebody else, and stay so"
        if record.ending:
            reason = f"{record.reason}; {reason}"
        how, now_ms = record.ending or "cancelled", record.ending_ms or self._all.now_ms()
        if sharing and sharing.shares.get(record.model):
            reason += "; the student stays loaded"
            await self._mesh.share(record.mark, None)
            await self._save(replace(record, state=how, reason=reason), moved=True)
        else:
            left = replace(record, ending=how, ending_ms=now_ms, restored=True, share=0.0, reason=reason)
            await self._save(left, moved=True)

    async def _end(self, how: Literal["rolled_back", "cancelled"], reason: str) -> None:
        await self._save(replace(self._record, ending=how, ending_ms=self._all.now_ms(), reason=reason), moved=True)

    async def _failed(self, error: LadrError) -> None:
        """A step did not work: say so, and give up if that lasts as long as a stage may."""
        record = self._record
        log.warning("rollout_waits", rollout=record.id, state=record.state, reason=error.message)
        if record.ending:
            return
        since_ms = record.stage_ms or record.changed_ms
        if self._all.now_ms() - since_ms > 1000 * record.rules.timeout_s:
            with suppress(LadrError):
                await self._end("rolled_back", f"the stage took too long: {_why(error)}")
        elif isinstance(error, NotFound) and self._all.now_ms() - self._heard_ms > _GONE_MS:
            with suppress(LadrError):
                await self._end("rolled_back", "no worker has the student any more")
        else:
            self._say(f"it waits: {_why(error)}")

    def _say(self, reason: str) -> None:
        if self._record.reason != reason:
            self._all.note(replace(self._record, reason=reason))

    async def _keep(self, record: Record) -> None:
        """New counts: in memory at once, on the disk now and then; the next reading counts all since the one kept."""
        if self._all.now_ms() - self._saved_ms > _SAVE_MS:
            await self._save(record)
        elif record != self._record:
            self._all.note(record)

    async def _save(self, record: Record, moved: bool = False) -> None:
        """Keep it; `moved`: its state, stage or share changed."""
        if moved:
            record = replace(record, changed_ms=self._all.now_ms())
            log.info(
                "rollout",
                rollout=record.id,
                name=record.split,
                model=record.model,
                state=record.state,
                stage=record.stage,
                share=record.share,
                reason=record.reason,
            )
        await self._all.save(record)
        self._saved_ms = self._all.now_ms()


def _gains(record: Record, sharing: Sharing) -> tuple[Counts, Counts]:
    """What the student and the others did since the counters were read last."""
    new: dict[str, Any] = {model: gained(record.seen.get(model), now) for model, now in sharing.counts.items()}
    return new.pop(record.model, NOTHING), sum(new.values(), NOTHING)


def _poll_s(record: Record) -> float:
    shortest_s, longest_s = _POLL_S
    return min(max(record.rules.stage_s / 10, shortest_s), longest_s)


def _why(error: LadrError) -> str:
    """An error's reason without an address."""
    if isinstance(error, Unreachable | DeadlineExceeded):
        return "no answer"
    return error.message
