"""Roll-outs as clients see them: begun, looked at, watched, taken back."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from google.protobuf.json_format import MessageToJson

from ladr.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Draining,
    LadrError,
    NotFound,
    Overloaded,
    Unreachable,
    WrongState,
)
from ladr.request import MAX_ID_BYTES
from ladr.v1 import distiller_pb2 as pb
from services.distiller.rollout.controller import Controller
from services.distiller.rollout.mesh import Mesh, ready, same
from services.distiller.rollout.record import Record, Shares, told
from services.distiller.rollout.request import whole
from services.distiller.rollout.store import RolloutStore

_CANCEL_S = 5.0  # how long CancelRollout waits for the end
_MOST_MODELS = 15  # behind a name, beside the student: as many as a router shares it between
_LIST_BYTES = 3 << 20  # of a list; clients take 4 MiB unless told otherwise
_RETRY_AFTER = timedelta(seconds=1)
_NO_ROUTER = "the service knows no router: set distiller.router to its address, and start it again"


class Rollouts:
    """What the roll-out methods of ladr.v1.Distiller do.

    Args:
        router: its address; None: the service knows none. find: gives a job by its id, or raises NotFound.
        make_id: makes a roll-out's id.
    """

    def __init__(
        self,
        store: RolloutStore,
        router: str | None,
        find: Callable[[str], Awaitable[pb.DistillJob]],
        make_id: Callable[[], str],
        most_watchers: int,
    ) -> None:
        self._store = store
        self._mesh = Mesh(router) if router else None
        self._find_job = find
        self._make_id = make_id
        self._most_watchers = most_watchers
        self._closed = False
        self._news = asyncio.Event()  # set and replaced at each change
        self._beginning: set[asyncio.Task[Record]] = set()
        self._wanted: Counter[str] = Counter()  # jobs whose students are about to be rolled out
        self.controller = Controller(store, self._mesh, self._changed)
        self.watchers = 0

    def close(self) -> None:
        """End the watches: their watchers come back when the service does."""
        self._closed = True
        self._changed()

    async def finish(self) -> None:
        """Wait for what was being begun, and close the connections."""
        await asyncio.gather(*self._beginning, return_exceptions=True)
        if self._mesh:
            await self._mesh.close()

    async def publish(self, asked: pb.PublishStudentRequest) -> pb.Rollout:
        """Begin one. Raises: InvalidRequest, NotFound, WrongState, AlreadyExists, Overloaded, Unreachable, JobsUnavailable."""
        request = whole(asked)
        digest = hashlib.sha256(asked.SerializeToString(deterministic=True)).hexdigest()
        if kept := self._store.named(request.request_id, digest):
            return told(kept)
        with ExitStack() as held:
            self._wanted[request.id] += (
                1  # before the job is read: who deletes it now is told so, or has done it already
            )
            held.callback(self._let_go, request.id)
            source = _source(await self._find_job(request.id), request.int8)
            if self._mesh is None:
                raise WrongState(_NO_ROUTER)
            try:
                with _reachable():
                    record = await self._record(self._mesh, request, digest, source)
            except AlreadyExists:
                if kept := self._store.named(request.request_id, digest):  # begun by the same call, made twice at once
                    return told(kept)
                raise
            task = asyncio.create_task(self._begin(self._mesh, record))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
            holding = held.pop_all()
            task.add_done_callback(lambda _: holding.close())
        return told(await asyncio.shield(task))  # it goes on if the caller does not stay

    def get(self, rollout_id: str) -> pb.Rollout:
        """Raises: NotFound."""
        return told(self._find(rollout_id))

    def list(self) -> pb.ListRolloutsResponse:
        """Newest first, as many as fit into a message."""
        answer, size = pb.ListRolloutsResponse(), 0
        for record in reversed(list(self._store.records.values())):
            one = told(record)
            size += one.ByteSize()
            if answer.rollouts and size > _LIST_BYTES:
                break
            answer.rollouts.append(one)
        return answer

    async def watch(self, rollout_id: str) -> AsyncGenerator[pb.Rollout]:
        """The roll-out now, then each change of it, until it has ended. Raises: NotFound, Overloaded, Draining."""
        with self._watcher():
            seen: Record | None = None
            while True:
                news, record = self._news, self._find(rollout_id)
                if record != seen:
                    seen = record
                    yield told(record)
                    continue  # it may have moved on meanwhile
                if not record.live:
                    return
                self._check_stays("watch")
                await news.wait()

    async def cancel(self, rollout_id: str) -> pb.Rollout:
        """Take one back; it is told of as it is when that is done, or after some seconds.

        One that has succeeded is taken back, too, as long as the name is shared as it left it.
        Raises: NotFound. WrongState: the service knows no router now, where it would be taken back, or a roll-out that has
        succeeded cannot be any more. AlreadyExists: another one goes on. Unreachable, JobsUnavailable, Draining.
        """
        record = self._find(rollout_id)
        if record.live or record.state == "succeeded":
            if self._mesh is None:
                raise WrongState(_NO_ROUTER)
            self._check_stays("cancel")
            if not record.live:
                await self._go_back(self._mesh, record)
            self.controller.cancel(rollout_id)
            with suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_S):
                    while (record := self._find(rollout_id)).live and not self._closed:
                        await self._news.wait()
        return told(self._find(rollout_id))

    def check_free(self, job_id: str) -> None:
        """Raises: WrongState: the student of this job is being rolled out, or about to be."""
        going = [("rollout", record.id) for record in self._store.live if record.request.id == job_id]
        if job_id in self._wanted:
            going.append(("distill_job", job_id))
        if going:
            raise WrongState("its student is being rolled out: cancel that first, or wait", resource=going[0])

    async def _go_back(self, mesh: Mesh, record: Record) -> None:
        """Have one that has succeeded go on, to where it began."""
        before = record.before or {record.split: 1.0}
        with _reachable():
            sharing, there = await mesh.sharing(record.split), await mesh.workers()
        if not same(sharing.shares if sharing else None, record.shares(record.stage)):
            message = (
                f"the shares of {record.split!r} are not those that it left any more: set them yourself (SetSplit)"
            )
            raise WrongState(message, resource=("rollout", record.id))
        for model in [model for model, share in before.items() if share]:
            if not any(ready(report, model) for report in there.values()):
                message = f"no worker answers with {model!r} any more: load it first"
                raise WrongState(message, resource=("rollout", record.id))
        self._store.check(record.split, record.model)
        now_ms = self._store.now_ms()
        reason = "it was cancelled after it had succeeded"
        back = replace(record, state="running", ending="cancelled", ending_ms=now_ms, changed_ms=now_ms, reason=reason)
        self._store.note(back)  # at once: nobody begins another meanwhile
        await self._store.save(back)

    def _let_go(self, job_id: str) -> None:
        self._wanted[job_id] -= 1
        if not self._wanted[job_id]:
            del self._wanted[job_id]

    async def _record(self, mesh: Mesh, request: pb.PublishStudentRequest, digest: str, source: str) -> Record:
        """A roll-out that can be begun."""
        split = await mesh.meant(request.name)
        self._store.check(split, request.model)
        sharing = await mesh.sharing(split)
        before = sharing.shares if sharing else None
        others = _others(before or {split: 1.0}, request.model)
        there = await mesh.workers()
        if not request.workers:
            asked = [model for model, share in others.items() if share]
            answering = [one for one, report in there.items() if any(ready(report, model) for model in asked)]
            request.workers.extend(answering)
        if not request.workers:
            raise NotFound("no worker answers for this name now: name workers, or start one", resource=("model", split))
        for worker in request.workers:
            if worker not in there:
                raise NotFound("the router knows no such worker", resource=("worker", worker[:MAX_ID_BYTES]))
        now_ms = self._store.now_ms()
        return Record(
            id=self._make_id(),
            asked=MessageToJson(request, indent=None),
            digest=digest,
            request_id=request.request_id,
            split=split,
            before=before,
            others=others,
            source=source,
            created_ms=now_ms,
            changed_ms=now_ms,
        )

    async def _begin(self, mesh: Mesh, record: Record) -> Record:
        with _reachable():
            await mesh.share(record.mark, record.marked)  # refused where it would be later
        kept = record
        try:
            kept = await self._store.create(record)
        finally:
            if kept is not record or record.id not in self._store.records:
                with suppress(LadrError):
                    await mesh.share(record.mark, None)
        self.controller.begin(kept.id)
        return kept

    def _find(self, rollout_id: str) -> Record:
        record = self._store.records.get(rollout_id)
        if record is None:
            raise NotFound("there is no such roll-out", resource=("rollout", rollout_id[:MAX_ID_BYTES]))
        return record

    def _check_stays(self, verb: str) -> None:
        if self._closed:
            raise Draining(f"the distiller is going away; {verb} again when it is back")

    def _changed(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    @contextmanager
    def _watcher(self) -> Iterator[None]:
        self._check_stays("watch")
        if self.watchers >= self._most_watchers:
            raise Overloaded("the distiller has all the watchers that it may have", retry_after=_RETRY_AFTER)
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1


@contextmanager
def _reachable() -> Iterator[None]:
    """Says of a router that is not there no more than that."""
    try:
        yield
    except (Unreachable, DeadlineExceeded):
        raise Unreachable("the router does not answer; try again", retry_after=_RETRY_AFTER) from None


def _source(job: pb.DistillJob, int8: bool) -> str:
    """Where the student is. Raises: WrongState: there is none, or none that is good enough."""
    if not int8:
        if job.state != pb.DISTILL_STATE_SUCCEEDED or not job.student_source:
            raise WrongState(
                "the job has no student yet: wait until it has succeeded", resource=("distill_job", job.id)
            )
        return job.student_source
    if job.state != pb.DISTILL_STATE_SUCCEEDED or not job.int8_source:
        raise WrongState(
            "the job has no INT8 form: its spec asks for none (int8.kind), it is not done, or its KL is above int8.threshold"
            " (int8.publish_above lets it through)",
            resource=("distill_job", job.id),
        )
    return job.int8_source


def _others(shares: Shares, student: str) -> dict[str, float]:
    """The models that a student takes the place of. Raises: WrongState: it is among them, or they are too many."""
    if shares.get(student):
        message = f"{student[:64]!r} gets requests for this name already: give the student another `model`"
        raise WrongState(message, resource=("model", student[:MAX_ID_BYTES]))
    others = {model: share for model, share in shares.items() if model != student}
    if len(others) > _MOST_MODELS:
        raise WrongState(
            f"this name is shared between {len(others)} models: {_MOST_MODELS} at most, beside the student"
        )
    return others
