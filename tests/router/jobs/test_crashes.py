"""Routers that die between any two steps, on both stores: nothing accepted is lost, and nothing is accepted twice.

Hypothesis plays routers, clients and time against a store, and cuts steps short: the commands of a step before the cut are
done, the others are not, and who called has no answer. At the end every router is gone and a new one finishes what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from ladr.errors import AlreadyExists, JobsUnavailable
from services.router.jobs.machine import Cancel, Event, Fail, GiveBack, Job, Refused, Requeue, Stale, Succeed
from services.router.jobs.store import Kept, Taken
from tests.redis_server import RedisServer
from tests.router.jobs.stores import LIMITS, Home, cut_short, draft, everything, redis_home, sqlite_home

NAMES = [f"job{n}" for n in range(2)]
CUTS = st.one_of(st.none(), st.none(), st.none(), st.tuples(st.integers(0, 6), st.booleans()))


class Routers(RuleBasedStateMachine):
    """`make_home` gives an empty place for jobs."""

    make_home: Callable[[], Home]
    held = Bundle("held")  # what routers believe to run

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.home = type(self).make_home()
        self.store: Any = self.home.make(-1, LIMITS, 100)  # every lease has ended as soon as somebody looks
        self.run(self.store.open())
        self.cut = cut_short(self.store)
        self.digests: dict[str, str] = {}  # of what was surely accepted
        self.results: dict[str, set[bytes]] = {}  # which the store said it took
        self.cancelled: set[str] = set()
        self.maybe_cancelled: set[str] = set()

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def step(self, cut: tuple[int, bool] | None, work: Awaitable[Any]) -> tuple[bool, Any]:
        """Do a step that may be cut; gives whether there was an answer, and which."""
        self.cut.after, self.cut.done = cut or (None, False)
        try:
            return True, self.run(work)
        except JobsUnavailable:
            assert cut, "the store failed without a cut"
            return False, None
        finally:
            self.cut.after = None

    @initialize()
    def begin(self) -> None:
        """There is a job from the start, so that short examples do something."""
        self.submit(NAMES[0], "d", None)

    @rule(name=st.sampled_from(NAMES), digest=st.sampled_from("de"), cut=CUTS)
    def submit(self, name: str, digest: str, cut: tuple[int, bool] | None) -> None:
        answered, replies = self.step(cut, self.store.submit([draft(name, digest)]))
        if not answered:
            return
        (reply,) = replies
        if isinstance(reply, AlreadyExists):
            assert self.digests.get(name, digest) != digest or name not in self.digests
        elif isinstance(reply, Kept):
            assert self.digests.setdefault(name, digest) == digest
        else:
            assert cut, reply

    @rule(target=held, name=st.sampled_from(NAMES), cut=CUTS)
    def take(self, name: str, cut: tuple[int, bool] | None) -> Any:
        """A client submits and a router claims, so that there is something to do."""
        self.submit(name, self.digests.get(name, "d"), None)
        return self._taken(self.step(cut, self.store.claim(1)))

    @rule(target=held, cut=CUTS)
    def take_over(self, cut: tuple[int, bool] | None) -> Any:
        self.home.pass_time(0.001)
        return self._taken(self.step(cut, self.store.reclaim(1)))

    def _taken(self, step: tuple[bool, Any]) -> Any:
        answered, taken = step
        if not answered or not taken:
            return multiple()
        assert taken[0].request == f"request of {taken[0].job.id}".encode()
        return taken[0]

    @rule(taken=held, cut=CUTS)
    def beat(self, taken: Taken, cut: tuple[int, bool] | None) -> None:
        self.step(cut, self.store.beat(taken.job.id, taken.job.token))

    @rule(taken=held, cut=CUTS)
    def append(self, taken: Taken, cut: tuple[int, bool] | None) -> None:
        with contextlib.suppress(Stale):
            self.step(cut, self.store.append(taken.job.id, taken.job.token, 0, b"part" + _mark(taken)))

    @rule(taken=held, cut=CUTS)
    def answer(self, taken: Taken, cut: tuple[int, bool] | None) -> None:
        """Say that it is done, with however many pieces there are. It may be said again later: held is not consumed."""
        look = self.run(self.store.look(taken.job.id, 0, 10))
        pieces = len(look[1]) - (look[0].state == "succeeded")
        event = Succeed(taken.job.token, pieces + 1, b"last" + _mark(taken), _mark(taken))
        try:
            answered, job = self.step(cut, self.store.apply(taken.job.id, event))
        except Stale:
            return
        if answered:
            assert job.token == taken.job.token, "an attempt that was not the newest was accepted"
            self.results.setdefault(taken.job.id, set()).add(_mark(taken))

    @rule(
        taken=held,
        event=st.sampled_from(
            ["fails", "fails for good", "fails, pauses", "gives back", "is cancelled", "is requeued"]
        ),
        cut=CUTS,
    )
    def other_ending(self, taken: Taken, event: str, cut: tuple[int, bool] | None) -> None:
        name, token = taken.job.id, taken.job.token
        events: dict[str, Event] = {
            "fails": Fail(token, ("X", "x")),
            "fails for good": Fail(token, ("X", "x"), final=True),
            "fails, pauses": Fail(token, ("X", "x"), pause_ms=500),
            "gives back": GiveBack(token),
            "is cancelled": Cancel(),
            "is requeued": Requeue(),
        }
        if event == "is cancelled":
            self.maybe_cancelled.add(name)
        with contextlib.suppress(Stale, Refused):
            answered, job = self.step(cut, self.store.apply(name, events[event]))
            if answered and job.state == "cancelled":
                self.cancelled.add(name)

    @rule(seconds=st.sampled_from([0.0, 0.6]), cut=CUTS)
    def sweep(self, seconds: float, cut: tuple[int, bool] | None) -> None:
        self.home.pass_time(seconds)
        self.step(cut, self.store.sweep(10))

    def teardown(self) -> None:
        """All routers are gone. A new one does what is left; then everything that was accepted has ended, once."""
        try:
            self.run(self._finish())
            jobs: dict[str, Job] = self.run(everything(self.store))
            assert self.digests.keys() <= jobs.keys(), "an accepted job was lost"
            for name, job in jobs.items():
                assert job.digest == self.digests.get(name, job.digest)
                assert job.state in ("succeeded", "dead", "cancelled"), job
                assert job.state == "cancelled" or name not in self.cancelled
                assert job.state != "cancelled" or name in self.maybe_cancelled
                taken = self.results.get(name, set())
                kept = self.run(self.store.result(name))
                assert len(taken) <= 1, "two results were accepted"
                if job.state == "succeeded":
                    look = self.run(self.store.look(name, 0, 10))
                    assert look[1][-1] == b"last" + kept
                    assert all(piece == b"part" + kept for piece in look[1][:-1]), "pieces of several attempts"
                    assert taken <= {kept}
                else:
                    assert not taken, "an accepted result was lost"
        finally:
            self.run(self.store.close())
            self.loop.close()

    async def _finish(self) -> None:
        for _ in range(200):
            self.home.pass_time(1)
            await self.store.sweep(10)
            taken = [*await self.store.claim(10), *await self.store.reclaim(10)]
            for one in taken:
                event = Succeed(one.job.token, 1, b"last" + _mark(one), _mark(one))
                try:
                    await self.store.apply(one.job.id, event)
                except Stale:
                    continue  # taken twice in this very round
            census = await self.store.census()
            if not census.states["queued"] + census.states["running"] + census.states["scheduled"]:
                return
        raise AssertionError(f"jobs are stuck: {await everything(self.store)}")


def _mark(taken: Taken) -> bytes:
    return taken.job.token.encode()


@pytest.mark.timeout(300)
def test_nothing_is_lost_or_accepted_twice_in_sqlite() -> None:
    class OnSqlite(Routers):
        @staticmethod
        def make_home() -> Home:
            directory = Path(tempfile.mkdtemp())
            directories.append(directory)
            return sqlite_home(directory / "jobs.db")

    directories: list[Path] = []
    try:
        run_state_machine_as_test(OnSqlite, settings=_SETTINGS)
    finally:
        for directory in directories:
            shutil.rmtree(directory)


@pytest.mark.timeout(300)
def test_nothing_is_lost_or_accepted_twice_in_redis(redis: RedisServer) -> None:
    class OnRedis(Routers):
        @staticmethod
        def make_home() -> Home:
            with redis.client() as client:
                client.flushall()
            return redis_home(redis.url)

    run_state_machine_as_test(OnRedis, settings=_SETTINGS)


_SETTINGS = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
